// Which vector instructions the library's own loops use. All choices give the same bits: the loops have no fused
// multiply-add, and sums run in a number of columns that does not depend on the width of a register.
#pragma once

#include <string_view>

namespace lockstep::internal::inline core {

/// In the order of their width. kPlain is what every processor of the kind has that the library was compiled for, and
/// has no loops with a fused multiply-add. kNeon is all that 64-bit Arm has: the plain loops use its registers too, so
/// that it adds only those with a fused multiply-add. The others are of x86-64. kAvx2Vaes is AVX2 with AES on whole
/// registers, which processors have had since 2020; kAvx512 has it too.
enum class Simd { kPlain, kNeon, kAvx2, kAvx2Vaes, kAvx512 };

/// The widest instructions that this processor has, but none wider than LOCKSTEP_SIMD=plain|neon|avx2|avx2-vaes|avx512
/// in the environment says. They are chosen once for the process. Throws a UsageError for any other text; then every
/// call throws it until the variable is right.
Simd simd();

/// The widest instructions that `text`, the value of LOCKSTEP_SIMD, lets through; an empty one lets kAvx512 through.
/// Throws a UsageError for any other text.
Simd simd_setting(std::string_view text);

/// "plain", "NEON", "AVX2", "AVX2 with VAES" or "AVX-512".
const char* name_of(Simd simd);

/// Of the same function for each set of instructions, the one for simd().
template <class Function>
Function* by_simd(Function* plain, Function* avx2, Function* avx2_vaes, Function* avx512) {
  Function* const all[] = {plain, plain, avx2, avx2_vaes, avx512};
  return all[static_cast<int>(simd())];
}

}  // namespace lockstep::internal::core

// A family of loops is one .inc file, compiled once for each set of instructions in a namespace of the set's name.
// LOCKSTEP_IN_EACH_SIMD declares its functions, and LOCKSTEP_BY_SIMD is a pointer to the one to use, where only the
// plain set may be compiled.
#define LOCKSTEP_IN_EACH_SIMD(...) \
  namespace plain {                \
  __VA_ARGS__                      \
  }                                \
  namespace avx2 {                 \
  __VA_ARGS__                      \
  }                                \
  namespace avx2_vaes {            \
  __VA_ARGS__                      \
  }                                \
  namespace avx512 {               \
  __VA_ARGS__                      \
  }
#if defined(LOCKSTEP_WIDE_SIMD)
#define LOCKSTEP_BY_SIMD(function) \
  lockstep::internal::by_simd(&plain::function, &avx2::function, &avx2_vaes::function, &avx512::function)
#else
#define LOCKSTEP_BY_SIMD(function) (&plain::function)
#endif
