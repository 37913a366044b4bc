// What the folders above need of a strategy beyond its public members.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/registry.h"

namespace lockstep::internal::inline optim {
class SlicedSlots;
}  // namespace lockstep::internal::optim

namespace lockstep::internal::inline strategy {

struct StrategyAccess {
  /// From now on the strategy's calls from outside of steps pass the gate.
  static void set_gate(const Strategy& strategy, std::shared_ptr<CallGate> gate) {
    strategy.group_->set_gate(std::move(gate));
  }
  /// The optimizers that live, in order of creation.
  static std::vector<Optimizer> optimizers(const Strategy& strategy) {
    std::vector<Optimizer> all;
    for (const auto& one : strategy.optimizers_) {
      if (auto state = one.lock()) all.emplace_back(std::move(state));
    }
    return all;
  }
  /// One line for each optimizer that lives: its name, and of each group the rule and how many variables it has.
  static std::vector<std::string> optimizer_texts(const Strategy& strategy);
  /// A line for each optimizer whose learning rate follows a schedule, with some of its rates.
  static std::vector<std::string> schedule_texts(const Strategy& strategy);
  /// The data sets that live, in order of creation, each with how it is dealt.
  static std::vector<std::pair<std::shared_ptr<const Deal>, std::string>> data_sets(const Strategy& strategy) {
    std::vector<std::pair<std::shared_ptr<const Deal>, std::string>> all;
    for (const auto& [weak, text] : strategy.data_sets_) {
      if (auto deal = weak.lock()) all.emplace_back(std::move(deal), text);
    }
    return all;
  }
  /// The data sets that have a name and live.
  static std::map<std::string, DistributedDataset> named_data_sets(const Strategy& strategy);
  static const ReplicaGroup& group(const Strategy& strategy) { return *strategy.group_; }
  static Findings& findings(const Strategy& strategy) { return strategy.group_->findings(); }
  static Rounds& rounds(const Strategy& strategy) { return strategy.group_->rounds(); }
  /// Whether sums of gradients are rounded on their way between workers, so that results depend on their number.
  static bool rounds_sums(const Strategy& strategy) {
    return strategy.wire_ != WireFormat::kExact && strategy.num_workers() > 1 &&
           strategy.group_->reducer().in_tree_order();
  }
  static UpdateForm update_form(const Strategy& strategy) { return strategy.update_form_; }
  static Factoring factoring(const Strategy& strategy) { return strategy.factoring_; }
  /// A call of all workers: makes sliced slots whole, until the next step of their optimizer.
  static void gather_slots(const Strategy& strategy);
  /// The slots of each living optimizer whose slots are sliced.
  static std::vector<std::shared_ptr<SlicedSlots>> sliced_slots(const Strategy& strategy);
  /// Whether gradients of the variable that are there now will probably be dropped by the zero_grad of its optimizer.
  static bool drops_gradients_of(const Strategy& strategy, const VariableState& variable);
  static VariableRegistry& registry(const Strategy& strategy) { return *strategy.registry_; }
};

/// What the bits of a run depend on beside the program, V and the threads of a replica: platform_fingerprint(), and
/// the number of workers where sums that travel between them are rounded.
std::string fingerprint_of(const Strategy& strategy);

/// The value of a cursor's item.
at::Tensor cursor_value(const lockstep::data::Cursor& cursor);

/// A variable as an item of a run's state.
StateItem item_of(const std::shared_ptr<VariableState>& variable);

}  // namespace lockstep::internal::strategy
