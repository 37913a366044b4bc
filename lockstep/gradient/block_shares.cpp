#include "lockstep/gradient/block_shares.h"

#include <algorithm>

#include "lockstep/core/loops/checksum.h"

namespace lockstep::internal::inline gradient {

namespace {

// The fixed cost of a block, expressed as bytes: it keeps lanes in balance where variables are tiny.
constexpr int64_t kBlockOverhead = 512;

}  // namespace

BlockShares::BlockShares(std::span<const VariableExtent> variables, int lanes) {
  int64_t total = 0;
  first_blocks_.push_back(0);
  for (const VariableExtent& variable : variables) {
    const int64_t blocks = blocks_of(variable.bytes);
    bytes_.push_back(variable.bytes);
    first_blocks_.push_back(first_blocks_.back() + blocks);
    total += variable.bytes + blocks * kBlockOverhead;
  }
  // A block belongs to the lane in whose share its middle lies.
  int64_t cost = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const int64_t bytes = variables[i].bytes;
    const int64_t at_once = variables[i].together ? std::max<int64_t>(1, blocks_of(bytes)) : 1;
    for (int64_t block = 0; block < blocks_of(bytes); block += at_once) {
      const int64_t own_cost = std::min(at_once * kBlockBytes, bytes - block * kBlockBytes) + at_once * kBlockOverhead;
      while (static_cast<int64_t>(begins_.size()) < lanes &&
             (cost + own_cost / 2) * lanes >= total * static_cast<int64_t>(begins_.size())) {
        begins_.push_back({i, block});
      }
      cost += own_cost;
    }
  }
  while (static_cast<int>(begins_.size()) <= lanes) begins_.push_back({variables.size(), 0});
}

int64_t BlockShares::first_block_of_lane(int lane) const {
  const Position& position = begin(lane);
  return first_block(position.variable) + position.block;
}

}  // namespace lockstep::internal::gradient
