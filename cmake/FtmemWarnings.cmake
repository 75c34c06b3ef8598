# FTMEM_WARNINGS: what this compiler knows of our warnings. FTMEM_ARITHMETIC: flags that results depend on. FTMEM_SMALL: of releases.
include(CheckCCompilerFlag)

set(FTMEM_WARNINGS "")
set(FTMEM_ARITHMETIC "")
set(FTMEM_SMALL "")
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
