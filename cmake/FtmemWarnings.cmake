# FTMEM_WARNINGS: what this compiler knows of our warnings. FTMEM_ARITHMETIC: flags that results depend on. FTMEM_SMALL: of releases.
# FTMEM_PACKED_RELOCATIONS: a bit for each pointer in a table, not 24 bytes, where linker and loader know them (a program that runs shows both).
include(CheckCCompilerFlag)
include(CheckCSourceRuns)

set(FTMEM_WARNINGS "")
set(FTMEM_ARITHMETIC "")
set(FTMEM_SMALL "")
set(FTMEM_PACKED_RELOCATIONS "")
if(MSVC)
    set(FTMEM_WARNINGS /W4)
    if(FTMEM_WERROR)
        list(APPEND FTMEM_WARNINGS /WX)
    endif()
    set(FTMEM_ARITHMETIC /fp:precise)
    return()
endif()

# ftmem_check_flags(<list> <flags>): appends the flags that the C compiler accepts
function(ftmem_check_flags list)
    set(accepted ${${list}})
    foreach(flag IN LISTS ARGN)
        string(MAKE_C_IDENTIFIER "FTMEM_HAS${flag}" variable)
        check_c_compiler_flag(${flag} ${variable})
        if(${variable})
            list(APPEND accepted ${flag})
        endif()
    endforeach()
    set(${list} ${accepted} PARENT_SCOPE)
endfunction()

ftmem_check_flags(FTMEM_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla)
if(FTMEM_WERROR)
    list(APPEND FTMEM_WARNINGS -Werror)
endif()
ftmem_check_flags(FTMEM_ARITHMETIC -ffp-contract=off) # a fused multiply-add would make figures differ between machines
ftmem_check_flags(FTMEM_SMALL -fno-asynchronous-unwind-tables) # nothing is thrown through C

if(UNIX AND NOT APPLE AND NOT CMAKE_CROSSCOMPILING)
    set(CMAKE_REQUIRED_LINK_OPTIONS -pie -Wl,-z,pack-relative-relocs)
    set(CMAKE_REQUIRED_FLAGS -fPIE)
    check_c_source_runs("static int x; int *const p = &x; int main(void) { return *p; }" FTMEM_HAS_PACKED_RELOCATIONS)
    if(FTMEM_HAS_PACKED_RELOCATIONS)
        set(FTMEM_PACKED_RELOCATIONS -Wl,-z,pack-relative-relocs)
    endif()
    unset(CMAKE_REQUIRED_LINK_OPTIONS)
    unset(CMAKE_REQUIRED_FLAGS)
endif()
