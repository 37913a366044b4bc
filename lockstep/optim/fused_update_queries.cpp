// What can be asked of an update: who has which block, and what its last pass has found.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/checksum.h"
#include "lockstep/optim/fused_update.h"

namespace lockstep::internal {

std::vector<std::shared_ptr<VariableState>> variables_of(const std::vector<UpdateTarget>& targets) {
  std::vector<std::shared_ptr<VariableState>> variables;
  for (const UpdateTarget& target : targets) variables.push_back(target.variable);
  return variables;
}

int64_t FusedUpdate::blocks_in(const std::vector<UpdateTarget>& targets) {
  int64_t blocks = 0;
  for (const UpdateTarget& target : targets) blocks += blocks_of(target.variable->bytes());
  return blocks;
}

bool FusedUpdate::has_block(std::size_t i, int64_t block) const {
  const Place place{i, block};
  return lane_begin_[static_cast<std::size_t>(range_.first)] <= place &&
         place < lane_begin_[static_cast<std::size_t>(range_.first + range_.count)];
}

int64_t FusedUpdate::first_block_of_lane(int lane) const {
  const Place& begin = lane_begin_[static_cast<std::size_t>(lane)];
  if (begin.target < targets_.size()) return targets_[begin.target].first_block + begin.block;
  return targets_.empty() ? 0 : targets_.back().first_block + blocks_of(targets_.back().bytes);
}

double FusedUpdate::global_norm() const { return std::sqrt(sum_of_squares()); }

double FusedUpdate::sum_of_squares() const {
  double total = 0;
  for (const Target& target : targets_) {
    if (!target.coefficients) continue;
    const int64_t end = target.first_block + blocks_of(target.bytes);
    for (int64_t block = target.first_block; block < end; ++block) total += square(block);
  }
  return total;
}

std::vector<FusedUpdate::ForeignWrite> FusedUpdate::take_foreign_writes() {
  std::vector<ForeignWrite> all;
  for (LaneWork& work : lanes_) {
    all.insert(all.end(), work.foreign_writes.begin(), work.foreign_writes.end());
    work.foreign_writes.clear();
  }
  std::sort(all.begin(), all.end());
  const auto same_target = [](const ForeignWrite& a, const ForeignWrite& b) { return a.target == b.target; };
  all.erase(std::unique(all.begin(), all.end(), same_target), all.end());
  return all;
}

std::vector<std::size_t> FusedUpdate::variables_not_finite() const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!present(i)) continue;
    const int64_t end = targets_[i].first_block + blocks_of(targets_[i].bytes);
    bool finite = true;
    for (int64_t block = targets_[i].first_block; block < end; ++block) finite = finite && std::isfinite(square(block));
    if (!finite) found.push_back(i);
  }
  return found;
}

}  // namespace lockstep::internal
