# Finds a CPU LibTorch wherever it lies and makes the imported target LibTorch::LibTorch.
#
# TorchConfig.cmake is not used: the one in the Python wheel demands a CUDA toolkit of its own kind even from programs
# that use no GPU. Only libtorch_cpu and libc10 are linked, so a LibTorch built for CUDA serves on a machine without.
#
# Input, the first that is set:
#   LibTorch_ROOT   (variable or environment) the unpacked zip, a `pip install --target` folder, or a torch package
#   CMAKE_PREFIX_PATH and the system's folders  (Debian: libtorch-dev)
# Output:
#   LibTorch_FOUND, LibTorch_VERSION, LibTorch_INCLUDE_DIR, LibTorch_LIBRARY_DIR

set(_libtorch_roots "")
foreach(_libtorch_root IN ITEMS "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}" "$ENV{LIBTORCH_ROOT}")
  if(_libtorch_root)
    list(APPEND _libtorch_roots "${_libtorch_root}" "${_libtorch_root}/torch" "${_libtorch_root}/libtorch")
  endif()
endforeach()

set(_libtorch_only "")
if(_libtorch_roots)
  set(_libtorch_only NO_DEFAULT_PATH) # a folder that was named is used or refused, never silently replaced
endif()

find_path(LibTorch_INCLUDE_DIR NAMES ATen/core/TensorBody.h
          PATHS ${_libtorch_roots} PATH_SUFFIXES include ${_libtorch_only})
find_library(LibTorch_CPU_LIBRARY NAMES torch_cpu
             PATHS ${_libtorch_roots} PATH_SUFFIXES lib lib64 ${_libtorch_only})
find_library(LibTorch_C10_LIBRARY NAMES c10
             PATHS ${_libtorch_roots} PATH_SUFFIXES lib lib64 ${_libtorch_only})
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

set(LibTorch_VERSION "")
if(LibTorch_INCLUDE_DIR)
  foreach(_libtorch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${_libtorch_header}")
      file(STRINGS "${LibTorch_INCLUDE_DIR}/${_libtorch_header}" _libtorch_lines
           REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "[^0-9]*([0-9]+);[^0-9]*([0-9]+);[^0-9]*([0-9]+)" "\\1.\\2.\\3"
                           _libtorch_version "${_libtorch_lines}")
      if(_libtorch_version MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
        set(LibTorch_VERSION "${_libtorch_version}")
      endif()
    endif()
  endforeach()
endif()

set(_libtorch_reason "")
if(LibTorch_C10_LIBRARY)
  # A LibTorch built with the std::string of before C++11 links with no program of today: say so here, in one line.
  file(STRINGS "${LibTorch_C10_LIBRARY}" _libtorch_abi REGEX "_ZN3c105ErrorC2E.*cxx11" LIMIT_COUNT 1)
  if(NOT _libtorch_abi)
    set(_libtorch_reason "${LibTorch_C10_LIBRARY} was built with the pre-C++11 std::string; take LibTorch 2.7 or later, "
                         "or the distribution's")
    string(CONCAT _libtorch_reason ${_libtorch_reason})
    set(LibTorch_C10_LIBRARY "LibTorch_C10_LIBRARY-NOTFOUND")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_reason}")

if(LibTorch_FOUND)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  if(NOT TARGET LibTorch::LibTorch)
    find_package(Threads REQUIRED)
    add_library(LibTorch::c10 SHARED IMPORTED)
    set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}")
    add_library(LibTorch::LibTorch SHARED IMPORTED)
    set_target_properties(
      LibTorch::LibTorch
      PROPERTIES IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
                 INTERFACE_INCLUDE_DIRECTORIES
                 "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
                 INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
                 "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
                 INTERFACE_COMPILE_FEATURES cxx_std_20
                 INTERFACE_LINK_LIBRARIES "LibTorch::c10;Threads::Threads")
  endif()
endif()
