#include "lockstep/core/simd.h"

#if defined(LOCKSTEP_WIDE_SIMD)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string>

namespace lockstep::internal {

namespace {

#if defined(LOCKSTEP_WIDE_SIMD)
bool has_vaes() {  // GCC 12's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 9)) != 0;
}
#endif

Simd choose() {
#if defined(LOCKSTEP_WIDE_SIMD)
  const char* text = std::getenv("LOCKSTEP_SIMD");
  const std::string asked = text ? text : "";
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool vaes = avx2 && has_vaes();
  const bool avx512 = vaes && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (asked == "plain" || !avx2) return Simd::kPlain;
  if (asked == "avx2" || !vaes) return Simd::kAvx2;
  if (asked == "avx2-vaes" || !avx512) return Simd::kAvx2Vaes;
  return Simd::kAvx512;
#endif
  return Simd::kPlain;
}

}  // namespace

Simd simd() {
  static const Simd chosen = choose();
  return chosen;
}

const char* name_of(Simd simd) {
  switch (simd) {
    case Simd::kPlain: return "plain";
    case Simd::kAvx2: return "AVX2";
    case Simd::kAvx2Vaes: return "AVX2 with VAES";
    case Simd::kAvx512: return "AVX-512";
  }
  return "unknown";
}

}  // namespace lockstep::internal
