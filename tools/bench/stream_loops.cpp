#include "tools/bench/stream_loops.h"

#include <algorithm>

#include "lockstep/reduce/loops/stream_copy.h"

namespace lockstep::tools {

namespace {

void triad_plain(float* __restrict a, const float* __restrict b, const float* __restrict c, float scale,
                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = b[i] + scale * c[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void triad_avx2(float* __restrict a, const float* __restrict b,
                                                const float* __restrict c, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = b[i] + scale * c[i];
}
#endif

}  // namespace

void triad(float* a, const float* b, const float* c, float scale, int64_t count) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return triad_avx2(a, b, c, scale, count);
#endif
  triad_plain(a, b, c, scale, count);
}

void triad_past_caches(float* a, const float* b, const float* c, float scale, int64_t count) {
  constexpr int64_t kChunk = 1024;
  alignas(64) float results[kChunk];
  for (int64_t from = 0; from < count; from += kChunk) {
    const int64_t length = std::min(kChunk, count - from);
    triad(results, b + from, c + from, scale, length);
    internal::stream_copy(a + from, results, static_cast<std::size_t>(length) * sizeof(float));
  }
}

}  // namespace lockstep::tools
