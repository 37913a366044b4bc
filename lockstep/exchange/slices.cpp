#include "lockstep/exchange/slices.h"

#include <algorithm>

#include "lockstep/core/loops/checksum.h"

namespace lockstep::internal::inline exchange {

LaneRange Slices::lanes_of(int64_t worker, int64_t num_workers, int lanes) {
  return {static_cast<int>(worker) * lanes, lanes, static_cast<int>(num_workers) * lanes};
}

Slices::Slices(const BlockShares& shares, int64_t num_workers, int lanes) {
  for (int64_t w = 0; w <= num_workers; ++w) {
    first_block_.push_back(shares.first_block_of_lane(static_cast<int>(w) * lanes));
  }
  for (std::size_t i = 0; i < shares.num_variables(); ++i) {
    const int64_t bytes = shares.bytes(i);
    const auto byte_of = [&](int64_t block) {
      return std::min(std::clamp<int64_t>(block - shares.first_block(i), 0, blocks_of(bytes)) * kBlockBytes, bytes);
    };
    for (int64_t w = 0; w < num_workers; ++w) {
      const int64_t begin = byte_of(first_block(w));
      slices_.push_back({begin, byte_of(first_block(w + 1)) - begin});
    }
  }
}

}  // namespace lockstep::internal::exchange
