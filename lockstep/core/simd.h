// Which vector instructions the library's own loops use. All choices give the same bits: the loops have no fused
// multiply-add, and what they sum runs in sixteen fixed columns whatever the width of a register.
#pragma once

namespace lockstep::internal {

/// kAvx2Vaes is AVX2 with AES on whole registers, as processors have it since 2020; so has kAvx512.
enum class Simd { kPlain, kAvx2, kAvx2Vaes, kAvx512 };

/// The widest that this processor has, or what LOCKSTEP_SIMD=plain|avx2|avx2-vaes|avx512 in the environment asks for,
/// where the processor has it. Decided once for the process. A UsageError for any other text: every call throws it
/// until the variable is right.
Simd simd();

/// The widest that LOCKSTEP_SIMD's `text` lets through; null or empty: kAvx512. A UsageError for any other text.
Simd simd_setting(const char* text);

/// "plain", "AVX2", "AVX2 with VAES" or "AVX-512".
const char* name_of(Simd simd);

}  // namespace lockstep::internal
