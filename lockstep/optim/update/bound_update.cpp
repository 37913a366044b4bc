#include "lockstep/optim/update/bound_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/grouped_sum.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

BoundUpdate::BoundUpdate(std::vector<UpdateTarget> owners, ReplicaRange replicas, LaneRange lanes,
                         std::span<double> squares)
    : owners_(std::move(owners)),
      plan_(planned(owners_), replicas, lanes),
      own_slots_(owners_.size()),
      found_(static_cast<std::size_t>(lanes.count)),
      shared_squares_(squares) {
  for (const PlannedTarget& target : plan_.targets()) targets_.emplace_back().planned = target;
  if (!is_shared()) own_squares_.resize(static_cast<std::size_t>(plan_.num_blocks()));
}

void BoundUpdate::begin_step() {
  const uint64_t now = VariableMemory::bindings();
  if (std::exchange(bindings_, now) == now && !is_shared()) return;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!is_shared() || present(i)) look_up(i);
  }
}

void BoundUpdate::look_up(std::size_t i) {
  const UpdateTarget& owner = owners_[i];
  BoundTarget& target = targets_[i];
  VariableState& variable = *owner.variable;
  const int64_t r = is_shared() ? 0 : plan_.replicas().first;
  const auto next_half_of = [](VariableState& state) {
    return reinterpret_cast<char*>(state.as_mirrored().next_half().values);
  };
  target.weights = target.new_weights = memory_of(variable.memory(r));
  target.checksums = target.new_checksums = variable.checksums(0);
  if (is_shared()) {
    target.new_weights = next_half_of(variable);
    target.new_checksums = variable.as_mirrored().next_half().checksums;
  }
  target.other_copies.clear();
  for (std::size_t copy = 1; target.checksums && copy < variable.copies().size(); ++copy)
    target.other_copies.push_back({memory_of(variable.copies()[copy]), variable.checksums(copy)});
  own_slots_[i].clear();
  for (std::size_t s = 0; s < owner.slots.size(); ++s) {
    char* const values = memory_of(owner.slots[s]->memory(r));
    char* const new_values = is_shared() ? next_half_of(*owner.slots[s]) : values;
    if (owner.own_rule) {
      own_slots_[i].push_back({values, new_values});
    } else {
      target.slots[s] = values;
      target.new_slots[s] = new_values;
    }
  }
}

double BoundUpdate::sum_of_squares() const {
  // Blocks of absent gradients count as 0: which of them are there changes no other block's group.
  GroupedSum total;
  for (const BoundTarget& target : targets_) {
    for (const double square : squares_of(target.planned)) total.add(target.coefficients ? square : 0);
  }
  return total.result();
}

std::vector<std::size_t> BoundUpdate::targets_not_finite() const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const auto is_finite = [](double square) { return std::isfinite(square); };
    if (present(i) && !std::ranges::all_of(squares_of(targets_[i].planned), is_finite)) found.push_back(i);
  }
  return found;
}

std::vector<ForeignWrite> BoundUpdate::take_foreign_writes() {
  std::vector<ForeignWrite> all;
  for (FoundByLane& found : found_) {
    all.insert(all.end(), found.foreign_writes.begin(), found.foreign_writes.end());
    found.foreign_writes.clear();
  }
  std::ranges::sort(all);
  const auto same_target = [](const ForeignWrite& a, const ForeignWrite& b) { return a.target == b.target; };
  all.erase(std::unique(all.begin(), all.end(), same_target), all.end());
  return all;
}

}  // namespace lockstep::internal::optim
