# Installs the libraries, the headers that users reach, the program, the CMake package and the pkg-config files.
include(CMakePackageConfigHelpers)

# The packages that a static library needs at a user's link, as arguments of find_package; a shared library needs none.
set(LOCKSTEP_PRIVATE_PACKAGES "fmt" "ZLIB" "PNG" "JPEG" "OpenSSL COMPONENTS SSL Crypto")

set(installed_package ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
file(RELATIVE_PATH from_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")

# Installed binaries find LibTorch where they were linked with it, and the library beside themselves.
set_target_properties(lockstep PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS lockstep EXPORT LockstepTargets)
foreach(plug_in IN ITEMS lockstep_ucx lockstep_mpi)
  if(TARGET ${plug_in})
    install(TARGETS ${plug_in} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${installed_package})
# The kit for users' tests is installed where Lockstep is built for itself: another project's build may not have made it.
if(PROJECT_IS_TOP_LEVEL)
  set_target_properties(lockstep_testing_kit PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON INSTALL_RPATH "$ORIGIN")
  install(TARGETS lockstep_testing_kit EXPORT LockstepTestingTargets)
  install(EXPORT LockstepTestingTargets NAMESPACE Lockstep:: DESTINATION ${installed_package})
endif()
if(LOCKSTEP_BUILD_TOOLS)
  set_target_properties(lockstep_program PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON
                                                    INSTALL_RPATH "$ORIGIN/${from_bin_to_lib}")
  install(TARGETS lockstep_program)
endif()

# The headers that users reach are listed at the time of installation.
install(CODE "set(lockstep_header_roots \"${PROJECT_SOURCE_DIR};${PROJECT_BINARY_DIR}/headers\")
set(lockstep_header_destination \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
set(lockstep_has_testing ${PROJECT_IS_TOP_LEVEL})")
install(SCRIPT cmake/install_headers.cmake)

# The package brings its own find module. LibTorch comes from where the user says, otherwise from where it was at the
# build.
get_filename_component(LOCKSTEP_LIBTORCH_ROOT "${LibTorch_INCLUDE_DIR}" DIRECTORY)
set(LOCKSTEP_FIND_PRIVATE_PACKAGES "")
get_target_property(lockstep_type lockstep TYPE)
if(lockstep_type STREQUAL STATIC_LIBRARY)
  foreach(package IN LISTS LOCKSTEP_PRIVATE_PACKAGES)
    string(APPEND LOCKSTEP_FIND_PRIVATE_PACKAGES "find_dependency(${package})\n")
  endforeach()
endif()
configure_package_config_file(cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${installed_package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              cmake/FindLibTorch.cmake
        DESTINATION ${installed_package})

file(RELATIVE_PATH LOCKSTEP_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(pc_names lockstep)
if(PROJECT_IS_TOP_LEVEL)
  list(APPEND pc_names lockstep-testing)
endif()
foreach(name IN LISTS pc_names)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
# The documentation, in the folders that its links expect.
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN site EXCLUDE)
