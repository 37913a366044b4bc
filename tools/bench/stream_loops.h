// The loops with which the speed of memory is measured.
#pragma once

#include <cstdint>

namespace lockstep::tools {

/// a[i] = b[i] + scale * c[i], by the widest vectors that the processor has.
void triad(float* a, const float* b, const float* c, float scale, int64_t count);
/// The same, with stores that do not fetch what they overwrite.
void triad_past_caches(float* a, const float* b, const float* c, float scale, int64_t count);

}  // namespace lockstep::tools
