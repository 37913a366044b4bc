// How an optimizer is made: its slots, and how its workers will update.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

namespace {

void require_sliceable(const ReplicaGroup& group, const std::vector<std::shared_ptr<VariableState>>& variables,
                       const std::string& name) {
  const std::string why = SlicedUpdate::obstacle(group, variables);
  if (why.empty()) return;
  throw UsageError(
      "LS-UPDATE-FORM",
      fmt::format("the slots of '{}' are to be sliced, and workers cannot divide its update: {}", name, why),
      "leave .slots whole: see docs/multi-worker.md");
}

/// What each slot begins with, by variable and slot.
std::vector<std::vector<double>> initial_slots(const std::vector<RuleGroup>& groups) {
  std::vector<std::vector<double>> initial;
  for (const RuleGroup& group : groups) {
    std::vector<double> of_rule;
    for (const SlotSpec& spec : group.rule->slots()) of_rule.push_back(spec.initial);
    initial.insert(initial.end(), group.variables.size(), of_rule);
  }
  return initial;
}

/// Rows are kept where this process updates all of a variable, from sums in tree order.
SparseSupport sparse_support(const ReplicaGroup& group, const GroupRule& rule, bool slices) {
  SparseSupport support = rule.sparse();
  const bool has_rows = group.reducer().in_tree_order() && !slices;
  if (!support.rows || has_rows) return support;
  // Sums of squares of a dense gradient have another order: slots would decide about bits.
  support = {.rows = false, .dense = support.dense && !slices, .refused = {}};
  support.refused = fmt::format("{} with {}", rule.name(), slices ? "sliced slots" : "a reducer of one's own");
  return support;
}

bool are_sliced(const ReplicaGroup& group, Slots slots) { return slots == Slots::kSliced && group.num_workers() > 1; }

}  // namespace

OptimizerState::OptimizerState(std::shared_ptr<ReplicaGroup> group, std::vector<RuleGroup> groups, std::string name,
                               const Placement& placement, Factoring factoring, UpdateForm form, WireFormat wire,
                               Slots slots, FunctionRef<bool(const VariableState&)> has_optimizer)
    : group_(std::move(group)),
      name_(std::move(name)),
      variables_(variables_of(*group_, groups)),
      counts_(variables_.front()->counts()),
      digest_(digest_of(variables_, groups)),
      steps_(variables_.size(), 0),
      gradients_(variables_, group_->num_local_replicas(),
                 [this, slices = are_sliced(*group_, slots)](std::size_t i) {
                   return sparse_support(*group_, *rules_[rule_of_[i]], slices);
                 }),
      asked_form_(AskedForm::of(form, wire)),
      local_(variables_.front()->is_trained_locally()),
      watch_(variables_, group_->num_local_replicas(), group_->num_replicas() > 1),
      factored_(variables_, factoring),
      replicas_(static_cast<std::size_t>(group_->num_local_replicas())) {
  const auto prefix_of = [&](const VariableState& variable) {
    return variable.name() + (has_optimizer(variable) ? "/" + name_ + "/" : "/");
  };
  const bool slices = are_sliced(*group_, slots);
  if (slices) require_sliceable(*group_, variables_, name_);
  const std::vector<UpdateTarget> targets = make_targets(groups, prefix_of, placement, slices);
  for (const UpdateTarget& target : targets) {
    first_slot_.push_back(slots_.size());
    for (const auto& slot : target.slots) {
      slots_.emplace_back(slot);
      const std::string own = slot->name().substr(slot->name().rfind('/'));
      named_slots_.push_back({target.variable->name() + own, slots_.back()});
    }
  }
  first_slot_.push_back(slots_.size());
  const int64_t replicas = group_->num_local_replicas();
  if (!local_ && group_->num_workers() > 1) row_exchange_.emplace(variables_, *group_);
  if (local_) {
    const auto factor = static_cast<double>(group_->num_replicas());
    for (int64_t r = 0; r < replicas; ++r) parts_.push_back({FusedUpdate(targets, {r, 1}, 1), factor});
  } else if (slices) {
    const int lanes = group_->plan().num_lanes();
    const LaneRange own = Slices::lanes_of(group_->rounds().worker_index(), group_->num_workers(), lanes);
    parts_.push_back({FusedUpdate(targets, {0, group_->num_replicas()}, own, {}), 1});
    sliced_ = std::make_unique<SlicedUpdate>(*group_, parts_.front().update, initial_slots(groups), name_, form);
  } else {
    if (group_->num_workers() > 1 && group_->reducer().in_tree_order()) {
      exchange_.emplace(variables_, *group_, asked_form_.form, asked_form_.wire);
      form_is_decided_ = false;
    }
    parts_.push_back({FusedUpdate(targets, {0, num_leaves()}, group_->plan().num_lanes()), 1});
  }
  for (RuleGroup& one : groups) {
    rule_of_.insert(rule_of_.end(), one.variables.size(), rules_.size());
    rules_.push_back(std::move(one.rule));
  }
  schedules_.resize(rules_.size());
  for (int64_t r = 0; r < replicas; ++r) {
    // Earlier losses do not concern this optimizer, unless their gradients are already there.
    const bool waiting = std::any_of(variables_.begin(), variables_.end(), [&](const auto& variable) {
      return variable->component(r).unsafeGetTensorImpl()->grad().defined();
    });
    if (!waiting) replicas_[static_cast<std::size_t>(r)].consumed = ContextAccess::scaled_backwards(group_->context(r));
  }
  forget_autocast_weights();  // for the first time it takes memory, which the end of a step must not need
}

OptimizerState::~OptimizerState() { take_before(); }

}  // namespace lockstep::internal
