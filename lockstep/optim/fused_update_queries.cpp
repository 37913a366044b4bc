// What an update is made of: who has which block; and what can be asked of it: what its last pass has found.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/reduce/grouped_sum.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline optim {

namespace {

// Of all replicas' blocks that are made from factors, together: half of a second-level cache; or a few samples of the
// matrix where these are longer. A lane keeps this memory until the optimizer ends.
constexpr int64_t kMadeElements = 64 << 10;

int64_t scratch_bytes(int64_t replicas) {
  return scratch_rows(replicas) * kSumBlock * static_cast<int64_t>(sizeof(double));
}

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

BlockShares shares_of(const std::vector<UpdateTarget>& targets, int lanes) {
  std::vector<VariableExtent> extents;
  for (const UpdateTarget& target : targets) {
    const bool takes_whole = target.own_rule && !target.own_rule->elementwise();
    extents.push_back({target.variable->bytes(), takes_whole});
  }
  return {extents, lanes};
}

}  // namespace

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes)
    : FusedUpdate(std::move(targets), replicas, {0, lanes, lanes}, {}) {
  begin_step();
}

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, LaneRange lanes,
                         std::span<double> squares)
    : owners_(std::move(targets)),
      replicas_(replicas),
      range_(lanes),
      shares_(shares_of(owners_, lanes.all)),
      is_shared_(!squares.empty()),
      lanes_(static_cast<std::size_t>(lanes.count)),
      shared_squares_(squares) {
  int64_t written = 0;
  bool any_half = false;
  for (const UpdateTarget& owner : owners_) {
    VariableState& variable = *owner.variable;
    Target& target = targets_.emplace_back();
    target.bytes = variable.bytes();
    target.first_block = shares_.first_block(targets_.size() - 1);
    target.type = variable.number_type();
    target.kind = owner.kind;
    target.one_copy = variable.copies().size() <= 1;
    written += target.bytes * static_cast<int64_t>(1 + owner.slots.size());
    any_half = any_half || is_half(target.type);
  }
  streams_ = is_shared_ && static_cast<std::size_t>(written) > kStreamedBytes;
  if (!is_shared_) own_squares_.resize(static_cast<std::size_t>(shares_.num_blocks()));
  for (LaneWork& work : lanes_) {
    work.row.resize(static_cast<std::size_t>(replicas.count));
    work.made.assign(work.row.size(), FactorBlocks(kMadeElements / replicas.count));
    work.scratch.resize(static_cast<std::size_t>(scratch_bytes(replicas.count)));
    if (streams_) work.written.resize(static_cast<std::size_t>((1 + kMaxSlots) * kBlockBytes));
    if (any_half)
      work.converted.resize(static_cast<std::size_t>((1 + kMaxSlots + replicas.count) * kSumBlock) * 2 * sizeof(float));
  }
  make_trials();
}

void FusedUpdate::expect_factors(std::size_t i) {
  const at::Tensor& like = owners_[i].variable->like();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const int first = range_.first + static_cast<int>(lane);
    const BlockShares::Position& end = shares_.begin(first + 1);
    if (i < shares_.begin(first).variable || i > end.variable || (i == end.variable && end.block == 0)) continue;
    for (FactorBlocks& made : lanes_[lane].made)
      made.reserve(like.size(0), like.size(1), kBlockBytes / static_cast<int64_t>(sizeof(float)));
  }
}

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

double FusedUpdate::sum_of_squares() const {
  // Blocks of absent gradients count as 0: which of them are there changes no other block's group.
  GroupedSum total;
  for (const Target& target : targets_) {
    const int64_t end = target.first_block + blocks_of(target.bytes);
    for (int64_t block = target.first_block; block < end; ++block) total.add(target.coefficients ? square(block) : 0);
  }
  return total.result();
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

}  // namespace lockstep::internal::optim
