// Which sample goes to which replica: pure functions of (seed, epoch, step, replica). No order is stored anywhere.
// Sizes and numbers of steps are at least 0, batches and numbers of replicas at least 1, up to the largest int64_t: no
// product or sum of them overflows.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline data {

/// The positions from begin to before end.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// The order of an epoch: a permutation of [0, size) that is computed position by position, in constant memory, so that
/// an epoch can be entered anywhere. It is a Feistel network over the pairs (i / b, i % b), keyed by (seed, epoch),
/// that is applied again until the result falls into the range (Black and Rogaway, "Ciphers with Arbitrary Finite
/// Domains", 2002).
class EpochOrder {
 public:
  /// Without `shuffle` the order is that of the data set.
  EpochOrder(int64_t size, bool shuffle, uint64_t seed, int64_t epoch);

  /// The sample at `position`, both in [0, size).
  int64_t sample_at(int64_t position) const;

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  bool shuffle_;
  uint64_t left_size_ = 1;
  uint64_t right_size_ = 1;
  uint64_t keys_[kRounds];
};

/// How many global batches an epoch of `size` samples has; the last may be short unless `drop_short`.
int64_t steps_of_epoch(int64_t size, int64_t global_batch, bool drop_short);

/// The positions of the epoch that form global batch `step`.
Span batch_span(int64_t size, int64_t global_batch, int64_t step);

/// Replica `replica`'s part of `whole`: parts lie in replica order, their sizes differ by at most one, and the larger
/// parts come first. Some are empty where there are fewer samples than replicas.
Span part_of(Span whole, int64_t replica, int64_t replicas);

}  // namespace lockstep::internal::data
