// The order in which the results of many blocks are added, which many threads of a device can follow side by side.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline reduce {

/// How many numbers are a group.
inline constexpr int64_t kGroupSize = 256;

/// Adds numbers in an order that depends on their indices alone. Neighbours are added in groups of kGroupSize: the
/// numbers 0 to 255, 256 to 511 and so on, within a group one after another, beginning with 0. The sums of groups are
/// added likewise, in groups of groups, until one number is left. Add a 0 in place of
/// a number that is absent, so that others keep their indices; where no number is negative, it changes no sum.
class GroupedSum {
 public:
  /// Adds the next number.
  void add(double number) {
    sums_[0] += number;
    ++count_;
    int64_t groups = count_;
    for (int level = 0; groups % kGroupSize == 0; ++level, groups /= kGroupSize) hand_on(level);
  }
  /// The sum of all; 0 of none.
  double result() const {
    GroupedSum rest = *this;
    for (int level = 0; level + 1 < kLevels; ++level) rest.hand_on(level);
    return rest.sums_[kLevels - 1];
  }

 private:
  static constexpr int kLevels = 8;  // 256^8 is more numbers than an int64_t counts
  void hand_on(int level) {
    sums_[level + 1] += sums_[level];
    sums_[level] = 0;
  }
  double sums_[kLevels] = {};  // of the group under way: of numbers, of groups, of groups of groups, ...
  int64_t count_ = 0;
};

}  // namespace lockstep::internal::reduce
