#include "lockstep/core/simd.h"

#if defined(LOCKSTEP_WIDE_SIMD)
#include <cpuid.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

#if defined(LOCKSTEP_WIDE_SIMD)
bool has_vaes() {  // GCC 12's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 9)) != 0;
}
#endif

Simd widest() {
#if defined(LOCKSTEP_WIDE_SIMD)
  if (!__builtin_cpu_supports("avx2")) return Simd::kPlain;
  if (!has_vaes()) return Simd::kAvx2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq")) return Simd::kAvx2Vaes;
  return Simd::kAvx512;
#else
  return Simd::kPlain;
#endif
}

}  // namespace

Simd simd_setting(const char* text) {
  const std::string_view asked = text != nullptr ? text : "";
  if (asked.empty() || asked == "avx512") return Simd::kAvx512;
  if (asked == "avx2-vaes") return Simd::kAvx2Vaes;
  if (asked == "avx2") return Simd::kAvx2;
  if (asked == "plain") return Simd::kPlain;
  throw UsageError(
      "LS-ENVIRONMENT", fmt::format("LOCKSTEP_SIMD is '{}'", asked),
      "set it to plain, avx2, avx2-vaes or avx512, or leave it unset for the widest that the processor has");
}

Simd simd() {
  static const Simd chosen = std::min(simd_setting(std::getenv("LOCKSTEP_SIMD")), widest());
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
