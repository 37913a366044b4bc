# How all of our code is compiled: the target lockstep_options, for the library, its tools and tests.
add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_include_directories(lockstep_options INTERFACE "${PROJECT_BINARY_DIR}/headers")
target_compile_options(
  lockstep_options
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
            $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>
            # Bits must not depend on what the compiler fuses: a*b+c is two roundings everywhere.
            -ffp-contract=off -fno-math-errno
            # GCC 12 gives these warnings for std::string itself.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi;-Wno-stringop-overflow;-Wno-restrict>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  if(LOCKSTEP_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # LibTorch's headers have a fence, which GCC's ThreadSanitizer cannot follow; our code has none.
    target_compile_options(lockstep_options INTERFACE -Wno-tsan)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A sanitizer's calls hide from GCC 12 which member of a std::variant was made.
    target_compile_options(lockstep_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(LOCKSTEP_SANITIZE MATCHES undefined)
    target_compile_options(lockstep_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
