# Finds LibTorch for the CPU in all of its layouts and makes the imported target LibTorch::LibTorch.
#
# TorchConfig.cmake is not used: the one in the Python package demands a CUDA toolkit even for programs that use no GPU.
# Only libtorch_cpu and libc10 are linked, so a LibTorch built for CUDA also works on a machine without it.
#
# Where it looks, the first that is set:
#   LibTorch_ROOT   (variable, then environment, there also as LIBTORCH_ROOT) an unpacked zip, a folder from
#                   `pip install --target`, a torch package, /usr; used or refused, never silently replaced
#   CMAKE_PREFIX_PATH, also with the share/cmake folder that torch.utils.cmake_prefix_path prints
#   LibTorch_DEFAULT_ROOT, the one that an installed Lockstep was built with
#   the system's folders  (Debian: libtorch-dev)
# Output:
#   LibTorch_FOUND, LibTorch_VERSION, LibTorch_INCLUDE_DIR, LibTorch_LIBRARY_DIR

set(_libtorch_named "")
foreach(_libtorch_root IN ITEMS "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}" "$ENV{LIBTORCH_ROOT}")
  if(_libtorch_root AND NOT _libtorch_named)
    file(TO_CMAKE_PATH "${_libtorch_root}" _libtorch_named)
  endif()
endforeach()

# The result of an earlier run is used only while it still exists and the same place is named.
if(NOT "${LibTorch_LOOKED_IN}" STREQUAL "${_libtorch_named}|${CMAKE_PREFIX_PATH}" OR NOT EXISTS "${LibTorch_CPU_LIBRARY}")
  unset(LibTorch_CPU_LIBRARY CACHE)
  unset(LibTorch_C10_LIBRARY CACHE)
  unset(LibTorch_INCLUDE_DIR CACHE)
  set(LibTorch_LOOKED_IN "${_libtorch_named}|${CMAKE_PREFIX_PATH}" CACHE INTERNAL "Where LibTorch was looked for")
endif()

set(_libtorch_reason "set LibTorch_ROOT to the folder that has it, or install the distribution's libtorch-dev")
if(_libtorch_named)
  set(_libtorch_folders lib lib64)
  if(CMAKE_LIBRARY_ARCHITECTURE)
    list(APPEND _libtorch_folders "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  endif()
  find_library(LibTorch_CPU_LIBRARY NAMES torch_cpu
               PATHS "${_libtorch_named}" "${_libtorch_named}/torch" "${_libtorch_named}/libtorch"
               PATH_SUFFIXES ${_libtorch_folders} NO_DEFAULT_PATH)
  set(_libtorch_reason "LibTorch_ROOT is ${_libtorch_named}, which has no lib/libtorch_cpu.so and include/ATen")
else()
  find_library(LibTorch_CPU_LIBRARY NAMES torch_cpu HINTS ${LibTorch_DEFAULT_ROOT} PATH_SUFFIXES lib ../../lib)
endif()

# The rest comes from the same LibTorch.
if(LibTorch_CPU_LIBRARY)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_LIBRARY_DIR}" ABSOLUTE)
  find_library(LibTorch_C10_LIBRARY NAMES c10 PATHS "${LibTorch_LIBRARY_DIR}" NO_DEFAULT_PATH)
  get_filename_component(_libtorch_above "${LibTorch_LIBRARY_DIR}" DIRECTORY)
  get_filename_component(_libtorch_above_that "${_libtorch_above}" DIRECTORY)
  find_path(LibTorch_INCLUDE_DIR NAMES ATen/core/TensorBody.h
            PATHS "${_libtorch_above}/include" "${_libtorch_above_that}/include" NO_DEFAULT_PATH)
  if(NOT LibTorch_INCLUDE_DIR)
    set(_libtorch_reason "${LibTorch_CPU_LIBRARY} has no headers beside it")
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

set(LibTorch_VERSION "")
foreach(_libtorch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(LibTorch_INCLUDE_DIR AND NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${_libtorch_header}")
    file(STRINGS "${LibTorch_INCLUDE_DIR}/${_libtorch_header}" _libtorch_lines
         REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE "[^0-9]*([0-9]+);[^0-9]*([0-9]+);[^0-9]*([0-9]+)" "\\1.\\2.\\3" _libtorch_version
                         "${_libtorch_lines}")
    if(_libtorch_version MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
      set(LibTorch_VERSION "${_libtorch_version}")
    endif()
  endif()
endforeach()

# A LibTorch built with the std::string of before C++11 links with no program of today: the message says so in one line.
set(_libtorch_usable TRUE)
if(LibTorch_C10_LIBRARY)
  file(STRINGS "${LibTorch_C10_LIBRARY}" _libtorch_abi REGEX "_ZN3c105ErrorC2E.*cxx11" LIMIT_COUNT 1)
  if(NOT _libtorch_abi)
    set(_libtorch_usable FALSE)
    set(_libtorch_reason
        "${LibTorch_C10_LIBRARY} was built with the pre-C++11 std::string: take 2.7 or later, or the distribution's")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR _libtorch_usable
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_reason}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  find_package(Threads REQUIRED)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}")
  add_library(LibTorch::LibTorch SHARED IMPORTED)
  set(_libtorch_includes "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
               INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_includes}"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_libtorch_includes}"
               INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_LINK_LIBRARIES "LibTorch::c10;Threads::Threads")
endif()
