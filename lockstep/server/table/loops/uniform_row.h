// Random numbers of a row of a table, which follow from its key alone.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline server {

/// Writes `count` words: Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// 2011), keyed by `key`, of which block b has the counter (row, b). The words of eight blocks stand together: first
/// the first word of each, then the second ones, and so on.
using RandomWords = void (*)(uint64_t key, uint64_t row, int64_t count, uint32_t* to);
/// Writes `count` numbers: low + (high - low) * (w >> 8) / 2^24 of each of these words w, in float32.
using UniformRow = void (*)(uint64_t key, uint64_t row, float low, float high, int64_t count, float* to);

/// The loops for this processor. All give the same bits.
RandomWords random_words();
UniformRow uniform_row();

}  // namespace lockstep::internal::server
