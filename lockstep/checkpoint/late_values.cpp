#include "lockstep/checkpoint/late_values.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/kinds/waiting_values.h"

namespace lockstep::internal::inline checkpoint {

namespace {

class LateValues final : public WaitingValues {
 public:
  LateValues(const Strategy& strategy, Late late, std::string what)
      : strategy_(strategy), late_(std::move(late)), what_(std::move(what)) {}

  void check(const std::shared_ptr<VariableState>& variable) override {
    const auto found = waiting_for(item_of(variable));
    if (found != late_.items.end()) fitting(variable, found->second);
  }

  void check_order(const std::string& optimizer, const std::vector<Variable>& slots) override {
    for (const Variable& slot : slots) {
      const std::string& name = slot.name();
      const std::size_t end = name.rfind('/');
      const std::string of_later = fmt::format("{}/{}{}", name.substr(0, end), optimizer, name.substr(end));
      if (!late_.items.contains({kind_text(StateItem::Kind::kSlot), of_later})) continue;
      throw_misfit(
          fmt::format("in the checkpoint the slot '{}' is of an optimizer that was made after another one of "
                      "the same variable, and here '{}' is the first",
                      shown(of_later), shown(optimizer)));
    }
  }

  void give(const std::shared_ptr<VariableState>& variable) override {
    const StateItem item = item_of(variable);
    const auto found = waiting_for(item);
    if (found == late_.items.end()) return;
    item.write(fitting(variable, found->second));
    late_.items.erase(found);
    end_where_all_is_given();
  }

  void give_to_items(const std::vector<StateItem>& items) override {
    for (const StateItem& item : items) {
      if (item.kind != StateItem::Kind::kStepCount && item.kind != StateItem::Kind::kLearningRate &&
          item.kind != StateItem::Kind::kCursor && item.kind != StateItem::Kind::kOption &&
          item.kind != StateItem::Kind::kRule) {
        continue;
      }
      const auto found = late_.items.find(key_of(item));
      if (found == late_.items.end()) continue;
      item.write(found->second.values);
      late_.items.erase(found);
    }
    end_where_all_is_given();
  }

  Late& late() { return late_; }
  const std::string& what() const { return what_; }

  /// Whoever calls this holds a pointer of its own, because the registry's may be the last one otherwise.
  void end_where_all_is_given() {
    VariableRegistry& registry = StrategyAccess::registry(strategy_);
    // A tracked value's function may have restored another checkpoint meanwhile.
    if (late_.empty() && registry.waiting().get() == this) registry.set_waiting(nullptr);
  }

 private:
  /// What waits for a variable. A UsageError where a variable of the name but of another kind is waited for.
  std::map<KindAndName, Saved>::iterator waiting_for(const StateItem& item) {
    for (const auto kind : {StateItem::Kind::kMirrored, StateItem::Kind::kOnRead, StateItem::Kind::kSlot}) {
      if (kind == item.kind || !late_.items.contains({kind_text(kind), item.name})) continue;
      throw_misfit(fmt::format("'{}' is {} in the checkpoint, and {} here", shown(item.name), kind_text(kind),
                               kind_text(item.kind)));
    }
    return late_.items.find(key_of(item));
  }

  [[noreturn]] void throw_misfit(const std::string& misfit) const {
    throw UsageError("LS-CHECKPOINT-MISFIT",
                     fmt::format("{}, restored before, does not fit what is made now: {}", what_, misfit),
                     "make it as the checkpoint has it, or restore only what shall go on: RestoreOptions::only");
  }

  static KindAndName key_of(const StateItem& item) { return {kind_text(item.kind), item.name}; }

  std::vector<at::Tensor> fitting(const std::shared_ptr<VariableState>& state, const Saved& saved) const {
    const StateItem item = item_of(state);
    const Variable variable(state);
    auto values = values_here(saved, item.per_replica, strategy_, variable.aggregation());
    const std::string misfit = misfit_text(item, saved, values, &variable);
    if (!misfit.empty()) throw_misfit(misfit);
    return values;
  }

  const Strategy& strategy_;
  Late late_;
  const std::string what_;
};

std::shared_ptr<LateValues> late_values_of(const Strategy& strategy) {
  return std::dynamic_pointer_cast<LateValues>(StrategyAccess::registry(strategy).waiting());
}

}  // namespace

void wait_for_later(const Strategy& strategy, Late late, const std::string& what) {
  StrategyAccess::registry(strategy).set_waiting(
      late.empty() ? nullptr : std::make_shared<LateValues>(strategy, std::move(late), what));
}

std::vector<std::string> waiting_names(const Strategy& strategy) {
  const auto waiting = late_values_of(strategy);
  if (!waiting) return {};
  std::vector<std::string> names;
  for (const auto& [key, value] : waiting->late().items) names.push_back(key.second);
  for (const auto& [name, text] : waiting->late().data) names.push_back(name);
  for (const auto& [name, text] : waiting->late().values) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

void give_to_tracked(const Strategy& strategy, const std::string& name, const DistributedDataset& data) {
  const auto waiting = late_values_of(strategy);
  if (!waiting || !waiting->late().data.contains(name)) return;
  data.seek(cursor_of(waiting->late().data.at(name), fmt::format("{}: the cursor '{}'", waiting->what(), shown(name))));
  waiting->late().data.erase(name);
  waiting->end_where_all_is_given();
}

void give_to_tracked(const Strategy& strategy, const std::string& name, const Tracked::Value& value) {
  const auto waiting = late_values_of(strategy);
  if (!waiting || !waiting->late().values.contains(name)) return;
  value.load(waiting->late().values.at(name));
  waiting->late().values.erase(name);
  waiting->end_where_all_is_given();
}

}  // namespace lockstep::internal::checkpoint
