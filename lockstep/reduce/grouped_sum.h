// The order in which numbers are added that many may compute side by side, such as the results of blocks.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline reduce {

/// Adds numbers in an order that depends on their indices alone. Neighbours are added in groups of kGroupedSum: the
/// numbers 0 to 255, 256 to 511 and so on, within a group one after another, beginning with 0. The sums of groups are
/// added likewise, in groups of groups, until one number is left. Where no number is negative, to add a 0 in place of
/// one that is absent is to leave it out.
inline constexpr int64_t kGroupedSum = 256;

class GroupedSum {
 public:
  /// Adds the next number.
  void add(double number) {
    sums_[0] += number;
    ++count_;
    int64_t groups = count_;
    for (int level = 0; groups % kGroupedSum == 0; ++level, groups /= kGroupedSum) hand_on(level);
  }
  /// The sum of all; 0 of none.
  double result() const {
    GroupedSum rest = *this;
    for (int level = 0; level + 1 < kLevels; ++level) rest.hand_on(level);
    return rest.sums_[kLevels - 1];
  }

 private:
  static constexpr int kLevels = 8;  // of 256: as many numbers as there are
  void hand_on(int level) {
    sums_[level + 1] += sums_[level];
    sums_[level] = 0;
  }
  double sums_[kLevels] = {};  // of the group under way: of numbers, of groups, of groups of groups, ...
  int64_t count_ = 0;
};

}  // namespace lockstep::internal::reduce
