#!/usr/bin/env bash
# FindLibTorch finds every layout in which LibTorch comes, and only in the place that is named.
# Usage: find_libtorch_test.sh LIBRARY_FOLDER INCLUDE_FOLDER VERSION   (of the one that we build with)
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
libraries=$1 headers=$2 version=$3

# layout FOLDER LIB: a LibTorch in FOLDER, by links to the real one.
layout() {
  mkdir -p "$scratch/$1/$2"
  ln -s "$libraries/libtorch_cpu.so" "$libraries/libc10.so" "$scratch/$1/$2/"
  ln -s "$headers" "$scratch/$1/include"
}
layout zip/libtorch lib
layout pip/torch lib
layout prefix lib
layout package/torch lib
mkdir -p "$scratch/package/torch/share/cmake" "$scratch/empty"
layout no-headers lib && rm "$scratch/no-headers/include"

cat >"$scratch/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(find CXX)
list(APPEND CMAKE_MODULE_PATH "$source_dir/cmake")
# found WHERE: it is found there now; forget, as another run of CMake with other settings would.
macro(found where)
  find_package(LibTorch QUIET)
  if(NOT LibTorch_FOUND OR NOT LibTorch_LIBRARY_DIR STREQUAL "$scratch/\${where}" OR NOT LibTorch_VERSION STREQUAL "$version")
    message(SEND_ERROR "expected \${where}, got '\${LibTorch_LIBRARY_DIR}' \${LibTorch_VERSION}")
  endif()
endmacro()
set(LibTorch_DEFAULT_ROOT "$scratch/prefix")
found(prefix/lib)
foreach(root IN ITEMS zip zip/libtorch pip pip/torch prefix)
  set(LibTorch_ROOT "$scratch/\${root}")
  if(root MATCHES "^zip")
    found(zip/libtorch/lib)
  elseif(root MATCHES "^pip")
    found(pip/torch/lib)
  else()
    found(prefix/lib)
  endif()
endforeach()
unset(LibTorch_ROOT)
set(CMAKE_PREFIX_PATH "$scratch/package/torch/share/cmake") # what torch.utils.cmake_prefix_path prints
found(package/torch/lib)
set(CMAKE_PREFIX_PATH "$scratch/empty")
found(prefix/lib)
set(ENV{LibTorch_ROOT} "$scratch/pip")
found(pip/torch/lib)
unset(ENV{LibTorch_ROOT})
foreach(root IN ITEMS empty no-headers)
  set(LibTorch_ROOT "$scratch/\${root}")
  find_package(LibTorch QUIET)
  if(LibTorch_FOUND)
    message(SEND_ERROR "\${root} is named, and \${LibTorch_LIBRARY_DIR} was taken")
  endif()
endforeach()
END
unset LibTorch_ROOT LIBTORCH_ROOT
expect 0 "Configuring done" cmake -G Ninja -S "$scratch" -B "$scratch/build"
expect 1 "LibTorch_ROOT is $scratch/empty, which has no" \
  cmake -G Ninja -S "$source_dir" -B "$scratch/other" -DLibTorch_ROOT="$scratch/empty"

finish
