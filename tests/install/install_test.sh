#!/usr/bin/env bash
# The README's program, and one that uses the kit for tests, built and run outside of the repository: against an
# installed Lockstep (shared and static, by CMake and by pkg-config) and with Lockstep as a subdirectory.
# Usage: install_test.sh SOURCE BUILD LIBTORCH_LIBRARIES LIBTORCH_HEADERS   (of a finished build of shared libraries)
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
source=$1 build=$2 libraries=$3 headers=$4
# Objects that the build has, and the outside program once it is compiled, are not compiled again.
launcher=$source/tests/install/reuse_object.sh
unity=$(sed -n 's/^LOCKSTEP_UNITY:BOOL=//p' "$build/CMakeCache.txt")
export CCACHE_DISABLE=1
unset LibTorch_ROOT LIBTORCH_ROOT

# block LANGUAGE: the README's first block of code in it.
block() { awk -v fence='```' '$0 == fence { inside = 0 } inside { print } $0 == fence language { inside = !seen++ }' language="$1" "$source/README.md"; }

# outside NAME SED-SCRIPT: the README's program as a project of its own, its CMake lines edited.
outside() {
  mkdir "$scratch/$1"
  block cpp >"$scratch/$1/app.cpp"
  block cmake | sed "$2" >"$scratch/$1/CMakeLists.txt"
}

# run_app NAME [CMAKE OPTION...]: configures, builds and runs it.
run_app() {
  local folder=$scratch/$1
  shift
  expect 0 "Configuring done" cmake -G Ninja -S "$folder" -B "$folder/build" "$@"
  expect 0 "Linking CXX executable app" cmake --build "$folder/build"
  expect 0 "^epoch 2, loss 0\.[0-9]+" "$folder/build/app"
}

# run_kit NAME SED-SCRIPT [CMAKE OPTION...]: the same of kit/, a program that tests a strategy of its own.
run_kit() {
  local folder=$scratch/$1
  mkdir "$folder"
  cp "$source/tests/install/kit/kit.cpp" "$folder"
  sed "$2" "$source/tests/install/kit/CMakeLists.txt" >"$folder/CMakeLists.txt"
  shift 2
  expect 0 "Configuring done" cmake -G Ninja -S "$folder" -B "$folder/build" "$@"
  expect 0 "Linking CXX executable kit" cmake --build "$folder/build"
  expect 0 "own conforms, and 8 replicas" "$folder/build/kit"
}

# reusing FOLDER: the options of a build that takes objects from there.
reusing() {
  export reuse_from=$1
  options=(-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
    -DLOCKSTEP_UNITY="$unity" -DLibTorch_ROOT="$headers/..")
}

# Installed, shared libraries. Nothing says where LibTorch is: the one that Lockstep was built with is found.
expect 0 "lockstep.h" cmake --install "$build" --prefix "$scratch/shared"
expect 0 "^[0-9]+\.[0-9]+\.[0-9]+" "$scratch/shared/bin/lockstep" --version
for header in local_replicas local_workers conformance world_conformance; do
  [[ -e $scratch/shared/include/lockstep/testing/$header.h ]] || wrong "the kit for users' tests is not installed: $header.h"
done
for page in README.md docs/porting.md docs/variables.md examples/01_train/main.cpp; do
  [[ -e $scratch/shared/share/doc/lockstep/$page ]] || wrong "the documentation is not installed: $page"
done
[[ ! -e $scratch/shared/include/lockstep/optim/loops/update_block.h ]] || wrong "the headers of the kernels are installed"
# Engines with libraries of their own are plug-ins, loaded when they are chosen.
expect 0 "NEEDED.*libtorch" readelf -d "$scratch/shared/lib/liblockstep.so"
! grep -E 'NEEDED.*lib(ucp|ucs|uct|ucm|mpi)' "$scratch/output" || wrong "the library needs UCX or MPI"
outside app ''
run_app app -DCMAKE_PREFIX_PATH="$scratch/shared"
! grep -r "$libraries" "$scratch/shared/lib/cmake" || wrong "the package names LibTorch's libraries by their path"

# The kit for tests is a library of its own, of which the other one has nothing.
! nm -DC "$scratch/shared/lib/liblockstep.so" | grep -q ' lockstep::testing::' || wrong "liblockstep.so has the kit for tests in it"
run_kit kit '' -DCMAKE_PREFIX_PATH="$scratch/shared"

# By pkg-config.
export PKG_CONFIG_PATH=$scratch/shared/lib/pkgconfig
expect 0 "" bash -c "\${CXX:-c++} $scratch/app/build/CMakeFiles/app.dir/app.cpp.o -o $scratch/app/by-pkg-config \$(pkg-config --libs lockstep)"
expect 0 "^epoch 2" "$scratch/app/by-pkg-config"
expect 0 "-I$headers/torch/csrc/api/include" pkg-config --cflags lockstep
expect 0 "" bash -c "\${CXX:-c++} $scratch/kit/build/CMakeFiles/kit.dir/kit.cpp.o -o $scratch/kit/by-pkg-config \$(pkg-config --libs lockstep-testing)"
expect 0 "own conforms" "$scratch/kit/by-pkg-config"

# The examples, which are a project of their own too.
reusing "$build/examples"
expect 0 "Configuring done" cmake -G Ninja -S "$source/examples" -B "$scratch/examples" \
  -DCMAKE_PREFIX_PATH="$scratch/shared" "${options[@]}"
expect 0 "Linking CXX executable" cmake --build "$scratch/examples"
expect 0 "read\(\) gives 8$" "$scratch/examples/missing_aggregation"

# A LibTorch of another version is refused in one message.
mkdir -p "$scratch/other/lib" "$scratch/other/include/ATen/core" "$scratch/other/include/torch/headeronly"
ln -s "$libraries/libtorch_cpu.so" "$libraries/libc10.so" "$scratch/other/lib"
touch "$scratch/other/include/ATen/core/TensorBody.h"
printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 99' 'PATCH 0' >"$scratch/other/include/torch/headeronly/version.h"
expect 1 "has 2\.99\.0: set LibTorch_ROOT to a LibTorch" bash -c "cmake -G Ninja -S $scratch/app -B $scratch/app/refused \
  -DCMAKE_PREFIX_PATH=$scratch/shared -DLibTorch_ROOT=$scratch/other 2>&1 | tr -s ' \n' ' ' && exit 1"

# Installed, static library.
reusing "$build/lockstep"
expect 0 "Configuring done" cmake -G Ninja -S "$source" -B "$scratch/static-build" -DBUILD_SHARED_LIBS=OFF \
  -DLOCKSTEP_BUILD_TOOLS=OFF -DLOCKSTEP_BUILD_TESTS=OFF "${options[@]}"
expect 0 "Linking CXX static library" cmake --build "$scratch/static-build"
expect 0 "liblockstep.a" cmake --install "$scratch/static-build" --prefix "$scratch/static"
reusing "$scratch/app/build"
outside static-app ''
run_app static-app -DCMAKE_PREFIX_PATH="$scratch/static" "${options[@]}"
reusing "$scratch/kit/build"
run_kit static-kit '' -DCMAKE_PREFIX_PATH="$scratch/static" "${options[@]}"

# As a subdirectory, where the kit is built for what is linked with it, and not otherwise.
reusing "$build/lockstep"
outside subdirectory "s|^find_package(Lockstep.*|add_subdirectory($source lockstep)|"
run_app subdirectory "${options[@]}"
[[ -z $(find "$scratch/subdirectory/build" -name 'liblockstep_testing*' -o -path '*lockstep_testing.dir*.o') ]] ||
  wrong "a project that uses no kit has to build it"
run_kit subdirectory-kit "s|^find_package(Lockstep.*|add_subdirectory($source lockstep)|" "${options[@]}"

finish
