#include "lockstep/data/deal/plan.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/blocks.h"

namespace lockstep::internal::inline data {

namespace {

/// A strong 64-bit mixer (Stafford's variant 13, as in SplitMix64).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A number below `limit` from 64 random bits (Lemire's multiplication).
uint64_t below(uint64_t bits, uint64_t limit) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(bits) * limit) >> 64);
}

/// The remainder of a sum of two numbers below `size`.
uint64_t modulo(uint64_t sum, uint64_t size) { return sum < size ? sum : sum - size; }

}  // namespace

EpochOrder::EpochOrder(int64_t size, bool shuffle, uint64_t seed, int64_t epoch)
    : size_(size), shuffle_(shuffle && size > 1) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(size, 1));
  left_size_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(count)));
  while (left_size_ * left_size_ < count) ++left_size_;
  right_size_ = (count + left_size_ - 1) / left_size_;
  uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ mix(static_cast<uint64_t>(epoch) + 0xd1b54a32d192ed03u));
  for (uint64_t& round : keys_) round = key = mix(key + 0x9e3779b97f4a7c15u);
}

int64_t EpochOrder::sample_at(int64_t position) const {
  if (!shuffle_) return position;
  auto x = static_cast<uint64_t>(position);
  do {
    uint64_t left = x / right_size_;
    uint64_t right = x % right_size_;
    for (int round = 0; round < kRounds; round += 2) {
      left = modulo(left + below(mix(keys_[round] ^ right), left_size_), left_size_);
      right = modulo(right + below(mix(keys_[round + 1] ^ left), right_size_), right_size_);
    }
    x = left * right_size_ + right;
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

int64_t steps_of_epoch(int64_t size, int64_t global_batch, bool drop_short) {
  return size / global_batch + (!drop_short && size % global_batch != 0 ? 1 : 0);
}

Span batch_span(int64_t size, int64_t global_batch, int64_t step) {
  const int64_t begin = step > size / global_batch ? size : step * global_batch;
  return {begin, begin + std::min(size - begin, global_batch)};
}

Span part_of(Span whole, int64_t replica, int64_t replicas) {
  const Block block = block_of(whole.size(), replicas, replica);
  return {whole.begin + block.first, whole.begin + block.end()};
}

}  // namespace lockstep::internal::data
