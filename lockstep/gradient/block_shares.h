// Which lane has which blocks of an update.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal::inline gradient {

/// The lanes of this process: `count` lanes from `first` on, of `all` lanes that share an update.
struct LaneRange {
  int first;
  int count;
  int all;
};

/// What a cut depends on, of a variable.
struct VariableExtent {
  int64_t bytes;
  bool together = false;  // one lane has all of its blocks
};

/// A block is kBlockBytes of one variable. All blocks of all variables, in order, are cut into one share of neighbours
/// for each lane, which take about as long to update. The cut is a function of the variables and the number of lanes.
class BlockShares {
 public:
  /// A block of a variable.
  struct Position {
    std::size_t variable;
    int64_t block;  // within the variable
    auto operator<=>(const Position&) const = default;
  };

  BlockShares(std::span<const VariableExtent> variables, int lanes);

  std::size_t num_variables() const { return bytes_.size(); }
  int64_t bytes(std::size_t i) const { return bytes_[i]; }
  /// The index of variable i's first block among the blocks of all; of the number of variables: how many there are.
  int64_t first_block(std::size_t i) const { return first_blocks_[i]; }
  int64_t num_blocks() const { return first_blocks_.back(); }

  /// Where a lane's share begins. It ends where that of the next lane begins; `lane` may be the number of lanes.
  const Position& begin(int lane) const { return begins_[static_cast<std::size_t>(lane)]; }
  /// The same, counted over all variables.
  int64_t first_block_of_lane(int lane) const;
  /// Whether the lanes of this process have that block of variable i.
  bool has(const LaneRange& lanes, std::size_t i, int64_t block) const {
    const Position position{i, block};
    return begin(lanes.first) <= position && position < begin(lanes.first + lanes.count);
  }

 private:
  std::vector<int64_t> bytes_;         // by variable
  std::vector<int64_t> first_blocks_;  // by variable; one more at the end
  std::vector<Position> begins_;       // by lane, ascending; one more at the end
};

}  // namespace lockstep::internal::gradient
