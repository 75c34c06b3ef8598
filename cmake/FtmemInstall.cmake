# Headers, libraries, a relocatable CMake package and relocatable pkg-config files.
include(CMakePackageConfigHelpers)

install(FILES ${FTMEM_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ${FTMEM_TARGETS} EXPORT ftmem-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

set(ftmem_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ftmem)
install(EXPORT ftmem-targets NAMESPACE ftmem:: DESTINATION ${ftmem_package_dir})
configure_package_config_file(cmake/ftmem-config.cmake.in ftmem-config.cmake INSTALL_DESTINATION ${ftmem_package_dir}
                              NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(ftmem-config-version.cmake COMPATIBILITY SameMinorVersion) # SameMajorVersion from 1.0 on
install(FILES ${PROJECT_BINARY_DIR}/ftmem-config.cmake ${PROJECT_BINARY_DIR}/ftmem-config-version.cmake DESTINATION ${ftmem_package_dir})

# pkg-config: the prefix is found from the place of the file, unless an absolute directory was asked for
set(ftmem_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(FTMEM_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
    file(RELATIVE_PATH up "/${ftmem_pc_dir}" "/")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(FTMEM_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        set(FTMEM_PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
        set(FTMEM_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
endforeach()
set(modules ftmem)
if(TARGET ftmem::json)
    list(APPEND modules ftmem_json)
endif()
foreach(module IN LISTS modules)
    configure_file(cmake/${module}.pc.in ${module}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${module}.pc DESTINATION ${ftmem_pc_dir})
endforeach()
