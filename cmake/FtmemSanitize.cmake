# FTMEM_SANITIZE=address;undefined;... for every target of this project
if(NOT FTMEM_SANITIZE)
    return()
endif()
string(REPLACE ";" "," FTMEM_SANITIZE "${FTMEM_SANITIZE}")
string(REGEX REPLACE "(^|,)fuzzer(,|$)" "\\1fuzzer-no-link\\2" flags "${FTMEM_SANITIZE}") # the fuzz targets bring the main()
add_compile_options(-fsanitize=${flags} -fno-sanitize-recover=all -fno-omit-frame-pointer)
if(flags MATCHES "undefined") # the library never divides by zero; tests do, to make an infinity
    list(APPEND FTMEM_ARITHMETIC -fsanitize=float-divide-by-zero -fno-sanitize-recover=all)
endif()
add_link_options(-fsanitize=${flags})
