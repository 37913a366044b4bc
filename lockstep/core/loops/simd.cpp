#include "lockstep/core/loops/simd.h"

#if defined(LOCKSTEP_WIDE_SIMD)
#include <cpuid.h>
#endif

#include <algorithm>

#include "lockstep/core/switches.h"

namespace lockstep::internal::inline core {

namespace {

constexpr const char* kVariable = "LOCKSTEP_SIMD";

#if defined(LOCKSTEP_WIDE_SIMD)
bool has_vaes() {  // GCC 12's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 9)) != 0;
}
#endif

/// The widest that this processor has and `limit` lets through.
Simd widest(Simd limit) {
#if defined(LOCKSTEP_WIDE_SIMD)
  if (limit < Simd::kAvx2 || !__builtin_cpu_supports("avx2")) return Simd::kPlain;
  if (!has_vaes()) return Simd::kAvx2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq"))
    return std::min(limit, Simd::kAvx2Vaes);
  return limit;
#elif defined(LOCKSTEP_NEON)
  return std::min(limit, Simd::kNeon);
#else
  return Simd::kPlain;
#endif
}

}  // namespace

Simd simd_setting(std::string_view text) {
  return choice_in(kVariable, text,
                   {{"plain", Simd::kPlain},
                    {"neon", Simd::kNeon},
                    {"avx2", Simd::kAvx2},
                    {"avx2-vaes", Simd::kAvx2Vaes},
                    {"avx512", Simd::kAvx512}},
                   Simd::kAvx512, " for the widest that the processor has");
}

Simd simd() {
  static const Simd chosen = widest(simd_setting(switch_text(kVariable)));
  return chosen;
}

const char* name_of(Simd simd) {
  switch (simd) {
    case Simd::kPlain: return "plain";
    case Simd::kNeon: return "NEON";
    case Simd::kAvx2: return "AVX2";
    case Simd::kAvx2Vaes: return "AVX2 with VAES";
    case Simd::kAvx512: return "AVX-512";
  }
  return "unknown";
}

}  // namespace lockstep::internal::core
