# Compiles for 64-bit Arm on another processor, with Debian's cross compiler. scripts/test-arm gives the variables:
#   LOCKSTEP_ARM_ROOT      a folder with the libraries and headers for Arm that the build needs, as below /
#   LOCKSTEP_ARM_EMULATOR  a list: the program that runs Arm's programs here, and its arguments
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LOCKSTEP_ARM_ROOT)

# Programs are this machine's, and all else is Arm's. LibTorch is looked for where LibTorch_ROOT says.
set(CMAKE_FIND_ROOT_PATH "${LOCKSTEP_ARM_ROOT}" "${LibTorch_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# OpenSSL has headers of each processor.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${LOCKSTEP_ARM_ROOT}/usr/include/aarch64-linux-gnu")

# A cross linker does not look into the folders that LibTorch names for the libraries that it needs itself.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")

set(CMAKE_CROSSCOMPILING_EMULATOR ${LOCKSTEP_ARM_EMULATOR})
