// Which vector instructions the library's own loops use. All choices give the same bits: the loops have no fused
// multiply-add, and sums run in as many columns as 64 bytes have elements, whatever the width of a register.
#pragma once

#include <string_view>

namespace lockstep::internal {

/// kAvx2Vaes is AVX2 with AES on whole registers, which processors have had since 2020; kAvx512 has it too.
enum class Simd { kPlain, kAvx2, kAvx2Vaes, kAvx512 };

/// The widest instructions that this processor has, but none wider than LOCKSTEP_SIMD=plain|avx2|avx2-vaes|avx512 in
/// the environment says. They are chosen once for the process. Throws a UsageError for any other text; then every call
/// throws it until the variable is right.
Simd simd();

/// The widest instructions that `text`, the value of LOCKSTEP_SIMD, lets through; an empty one lets kAvx512 through.
/// Throws a UsageError for any other text.
Simd simd_setting(std::string_view text);

/// "plain", "AVX2", "AVX2 with VAES" or "AVX-512".
const char* name_of(Simd simd);

}  // namespace lockstep::internal
