#include "lockstep/strategy/state_items.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <set>
#include <span>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/kinds/mirrored_state.h"
#include "lockstep/variable/kinds/on_read_state.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/registry.h"

namespace lockstep {

using internal::CallScope;
using internal::OptimizerState;
using internal::VariableState;
using Tensors = std::vector<at::Tensor>;
using Kind = StateItem::Kind;

namespace {

void require_count(const std::string& name, const Tensors& values, std::size_t count) {
  if (values.size() == count) return;
  throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given {} values instead of {}", name, values.size(), count),
                   "give what read() of the same item gave, with the same number of replicas");
}

}  // namespace

std::string internal::fingerprint_of(const Strategy& strategy) {
  if (!StrategyAccess::rounds_sums(strategy)) return platform_fingerprint();
  // Factors travel as they are, so that what decides which gradients are factors decides bits.
  return fmt::format("{}, bfloat16 between {} workers, form {}, factors {}", platform_fingerprint(),
                     strategy.num_workers(), name_of(StrategyAccess::update_form(strategy)),
                     name_of(StrategyAccess::factoring(strategy)));
}

std::vector<std::string> internal::StrategyAccess::optimizer_texts(const Strategy& strategy) {
  std::vector<std::string> texts;
  for (const auto& weak : strategy.optimizers_) {
    const auto optimizer = weak.lock();
    if (!optimizer) continue;
    std::vector<std::string> rules;
    for (const auto& rule : optimizer->counts().rules()) {
      std::vector<std::string_view> slots;
      const std::vector<SlotSpec> specs = rule->slots();
      for (const SlotSpec& one : specs) slots.emplace_back(one.name);
      rules.push_back(fmt::format("{} with {}", rule->name(),
                                  slots.empty() ? "no slots" : fmt::format("the slots {}", fmt::join(slots, " and "))));
    }
    texts.push_back(fmt::format("optimizer '{}' {} of {}", optimizer->name(), fmt::join(rules, ", "),
                                counted(static_cast<int64_t>(optimizer->variables().size()), "variable")));
  }
  return texts;
}

std::vector<std::string> internal::StrategyAccess::schedule_texts(const Strategy& strategy) {
  std::vector<std::string> texts;
  for (const auto& weak : strategy.optimizers_) {
    const auto optimizer = weak.lock();
    const std::string rates = optimizer ? optimizer->counts().schedule_text() : "";
    if (!rates.empty()) texts.push_back(fmt::format("optimizer '{}' with a schedule: {}", optimizer->name(), rates));
  }
  return texts;
}

void internal::StrategyAccess::gather_slots(const Strategy& strategy) {
  for (const auto& weak : strategy.optimizers_) {
    if (const auto optimizer = weak.lock()) optimizer->gather_slots();
  }
}

std::vector<std::shared_ptr<internal::SlicedSlots>> internal::StrategyAccess::sliced_slots(const Strategy& strategy) {
  std::vector<std::shared_ptr<SlicedSlots>> all;
  for (const auto& weak : strategy.optimizers_) {
    const auto optimizer = weak.lock();
    if (optimizer && optimizer->sliced_slots() != nullptr) all.emplace_back(optimizer, optimizer->sliced_slots());
  }
  return all;
}

bool internal::StrategyAccess::drops_gradients_of(const Strategy& strategy, const VariableState& variable) {
  return std::any_of(strategy.optimizers_.begin(), strategy.optimizers_.end(), [&](const auto& weak) {
    const auto optimizer = weak.lock();
    if (!optimizer || !optimizer->drops_next()) return false;
    const auto& own = optimizer->variables();
    return std::any_of(own.begin(), own.end(), [&](const auto& one) { return one.get() == &variable; });
  });
}

StateItem internal::item_of(const std::shared_ptr<VariableState>& variable) {
  const bool one_value = variable->on_write();
  const Kind kind = variable->is_slot() ? Kind::kSlot : one_value ? Kind::kMirrored : Kind::kOnRead;
  const auto view = [variable, one_value]() -> Tensors {
    const at::NoGradGuard no_grad;
    variable->require_whole("StateItem::read");
    if (one_value) return {variable->as_mirrored().own_value().detach()};
    Tensors components;
    for (int64_t r = 0; r < variable->num_components(); ++r) components.push_back(variable->component(r).detach());
    return components;
  };
  const auto read = [view]() -> Tensors {
    const at::NoGradGuard no_grad;
    Tensors values = view();
    for (at::Tensor& value : values) value = value.clone();
    return values;
  };
  const auto write = [variable, one_value](const Tensors& values) {
    require_count(variable->name(), values, one_value ? 1 : static_cast<std::size_t>(variable->num_components()));
    Tensors fitting;
    for (const at::Tensor& value : values) fitting.push_back(internal::value_for(*variable, value, "a restored state"));
    if (one_value) return variable->write(fitting.front());
    internal::copy_overwritten(fitting, *variable);
    for (std::size_t r = 0; r < fitting.size(); ++r)
      variable->as_on_read().write_component(static_cast<int64_t>(r), fitting[r]);
  };
  return {variable->name(), kind, read, write, !one_value, view};
}

at::Tensor internal::cursor_value(const lockstep::data::Cursor& cursor) {
  std::vector<int64_t> numbers{cursor.epoch,
                               cursor.position,
                               cursor.size,
                               static_cast<int64_t>(cursor.seed),
                               static_cast<int64_t>(cursor.shuffle),
                               static_cast<int64_t>(cursor.digest),
                               static_cast<int64_t>(cursor.digest_by_file)};
  numbers.insert(numbers.end(), cursor.stream.begin(), cursor.stream.end());
  return at::tensor(numbers, at::kLong);
}

std::map<std::string, DistributedDataset> internal::StrategyAccess::named_data_sets(const Strategy& strategy) {
  std::map<std::string, DistributedDataset> all;
  for (const auto& [name, weak] : strategy.named_data_sets_) {
    if (const auto deal = weak.lock()) all.emplace(name, DistributedDataset(deal));
  }
  return all;
}

namespace {

/// An item that is one number.
template <class Number>
StateItem number(std::string name, Kind kind, std::function<Number()> get, std::function<void(Number)> set) {
  constexpr at::ScalarType kType = std::is_integral_v<Number> ? at::kLong : at::kDouble;
  return {name, kind, [get]() -> Tensors { return {at::scalar_tensor(get(), kType)}; },
          [name, set](const Tensors& values) {
            require_count(name, values, 1);
            const at::Tensor& value = values.front();
            if (!value.defined() || value.dim() != 0 || value.scalar_type() != kType) {
              throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given a value that is not one number", name),
                               "give what read() of the same item gave");
            }
            set(value.item<Number>());
          }};
}

StateItem item_of(const std::string& name, const DistributedDataset& data) {
  constexpr int64_t kFewest = 5;   // of a version before digests
  constexpr int64_t kNumbers = 7;  // those of a stream follow
  const auto read = [data]() -> Tensors { return {internal::cursor_value(data.cursor())}; };
  const auto write = [name, data](const Tensors& values) {
    require_count(name, values, 1);
    const at::Tensor& value = values.front();
    if (!value.defined() || !value.device().is_cpu() || value.scalar_type() != at::kLong || value.dim() != 1 ||
        (value.size(0) != kFewest && value.size(0) < kNumbers)) {
      throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given a value that is not a cursor", name),
                       "give what read() of the same item gave");
    }
    const at::Tensor numbers = value.contiguous();
    const std::span<const int64_t> number = internal::host_numbers<int64_t>(numbers);
    data::Cursor cursor{number[0], number[1], number[2], static_cast<uint64_t>(number[3]), number[4] != 0};
    if (numbers.numel() >= kNumbers) {
      cursor.digest = static_cast<uint64_t>(number[5]);
      cursor.digest_by_file = static_cast<uint64_t>(number[6]);
      cursor.stream.assign(number.begin() + kNumbers, number.end());
    }
    data.seek(cursor);
  };
  return {name, Kind::kCursor, read, write};
}

/// The name of a group's rule. It cannot be set: write() refuses another one.
StateItem rule_item(const std::shared_ptr<OptimizerState>& optimizer, int64_t group) {
  const std::string name = fmt::format("{}/rule/{}", optimizer->name(), group);
  const auto read = [optimizer, group]() -> Tensors {
    const std::string_view rule = optimizer->counts().rule(group).name();
    return {at::tensor(std::vector<int64_t>(rule.begin(), rule.end()), at::kLong)};
  };
  const auto write = [name, read](const Tensors& values) {
    require_count(name, values, 1);
    if (values.front().defined() && values.front().equal(read().front())) return;
    throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' is another rule in the state than here", name),
                     "make the optimizer with the rule of the state");
  };
  StateItem item{name, Kind::kRule, read, write};
  item.is_of_torch = !optimizer->counts().rule(group).own();
  return item;
}

/// Learning rates, whether schedules give them, weight decays and, where they can be set, momentums of an optimizer's
/// groups.
void add_settings(std::vector<StateItem>& items, const std::shared_ptr<OptimizerState>& optimizer) {
  using internal::RuleSettings;
  for (int64_t g = 0; g < optimizer->counts().num_groups(); ++g) {
    const internal::GroupRule& rule = optimizer->counts().rule(g);
    const auto add = [&](const char* what, Kind kind, double RuleSettings::*setting, auto check) {
      items.push_back(number<double>(
          fmt::format("{}/{}/{}", optimizer->name(), what, g), kind,
          [optimizer, g, setting] { return optimizer->counts().rule(g).settings().*setting; },
          [optimizer, g, setting, check](double value) {
            check(optimizer->counts().rule(g), value);
            RuleSettings settings = optimizer->counts().rule(g).settings();
            settings.*setting = value;
            optimizer->counts().set(g, {&settings, 1});
          }));
      if (kind == Kind::kOption) items.back().made_with = rule.made_with().*setting;
    };
    items.push_back(rule_item(optimizer, g));
    add("learning_rate", Kind::kLearningRate, &RuleSettings::learning_rate, [](const auto&, double) {});
    items.push_back(number<double>(
        fmt::format("{}/has_schedule/{}", optimizer->name(), g), Kind::kOption,
        [optimizer, g] { return optimizer->counts().has_schedule(g) ? 1.0 : 0.0; },
        [optimizer, g](double had) { optimizer->counts().expect_schedule(had, g); }));
    items.back().made_with = 0;
    if (rule.own()) continue;
    add("weight_decay", Kind::kOption, &RuleSettings::weight_decay,
        [](const auto& of, double value) { of.check_weight_decay(value); });
    if (!rule.takes_momentum()) continue;
    add("momentum", Kind::kOption, &RuleSettings::momentum,
        [](const auto& of, double value) { of.check_momentum(value); });
  }
}

}  // namespace

std::vector<StateItem> Strategy::state_items() const {
  const CallScope call(*group_, "Strategy::state_items", "list them between runs", internal::Workers::kThis);
  const auto group = group_;
  const auto unchanging_seed = [group](int64_t seed) {
    if (static_cast<uint64_t>(seed) == group->seed()) return;
    throw UsageError(
        "LS-STATE-MISFIT",
        fmt::format("the state is of seed {} and the strategy has seed {}", static_cast<uint64_t>(seed), group->seed()),
        "make the strategy with the seed of the state");
  };
  std::vector<StateItem> items{
      number<int64_t>(
          "seed", Kind::kNumber, [group] { return static_cast<int64_t>(group->seed()); }, unchanging_seed),
      number<int64_t>(
          "step", Kind::kNumber, [group] { return group->step(); }, [group](int64_t step) { group->set_step(step); }),
      number<int64_t>(
          "evaluations", Kind::kNumber, [group] { return group->state().evaluations; },
          [group](int64_t evaluations) { group->set_evaluations(evaluations); })};
  registry_->forget_unused();
  for (const auto& variable : registry_->variables()) items.push_back(internal::item_of(variable));
  std::set<std::string> counted;  // variables whose step count by one optimizer is in the list already
  for (const auto& weak : optimizers_) {
    const auto optimizer = weak.lock();
    if (!optimizer) continue;
    for (std::size_t i = 0; i < optimizer->variables().size(); ++i) {
      const std::string& variable = optimizer->variables()[i]->name();
      const bool first = counted.insert(variable).second;
      items.push_back(number<int64_t>(
          first ? variable + "/step" : fmt::format("{}/{}/step", variable, optimizer->name()), Kind::kStepCount,
          [optimizer, i] { return optimizer->counts().steps(i); },
          [optimizer, i](int64_t n) { optimizer->counts().set_steps(i, n); }));
    }
    items.push_back(number<double>(
        fmt::format("{}/extra_steps/0", optimizer->name()), Kind::kOption,
        [optimizer] { return static_cast<double>(optimizer->counts().extra_steps()); },
        [optimizer](double steps) { optimizer->counts().set_extra_steps(steps); }));
    items.back().made_with = 0;
    add_settings(items, optimizer);
  }
  for (const auto& [name, weak] : named_data_sets_) {
    if (const auto deal = weak.lock()) items.push_back(item_of(name, DistributedDataset(deal)));
  }
  return items;
}

}  // namespace lockstep
