#include "lockstep/optim/saved_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

namespace {

constexpr const char* kExtraSteps = "extra_steps";
std::string rule_name(std::size_t group) { return fmt::format("rule/{}", group); }

/// Why state of a group whose rule is called `here` does not fit: see GroupRule::own().
std::string misfit_of_rule(const at::Tensor& saved, const GroupRule& here) {
  std::string name = "a rule of torch::optim";
  if (saved.defined()) {
    if (saved.layout() != at::kStrided || !saved.device().is_cpu() || saved.scalar_type() != at::kByte)
      return "is no text";
    name = fmt::format("'{}'", host_text(saved.contiguous()));
  }
  const std::string own = here.own() ? fmt::format("'{}'", here.name()) : here.name();
  return name == own ? "" : fmt::format("is {} in the state, and {} here", name, own);
}

std::string step_name(const VariableState& variable) { return variable.name() + "/step"; }
std::string rate_name(std::size_t group) { return fmt::format("learning_rate/{}", group); }
std::string decay_name(std::size_t group) { return fmt::format("weight_decay/{}", group); }
std::string momentum_name(std::size_t group) { return fmt::format("momentum/{}", group); }
std::string schedule_name(std::size_t group) { return fmt::format("has_schedule/{}", group); }

/// Why `value` is not one number of that type, as the end of a sentence; empty where it is.
std::string misfit_of_number(const at::Tensor& value, at::ScalarType type) {
  if (!value.defined()) return "is undefined";
  if (value.layout() == at::kStrided && value.device().is_cpu() && value.dim() == 0 && value.scalar_type() == type) {
    return "";
  }
  return fmt::format("is not one {} without dimensions", c10::toString(type));
}

/// Takes named tensors one by one and collects what is wrong with them.
class Reader {
 public:
  explicit Reader(const std::map<std::string, at::Tensor>& named) : named_(named) {}

  /// The tensor of that name if it fits, otherwise null. `why_not` says why a tensor does not fit, as the end of a
  /// sentence; empty where it fits.
  const at::Tensor* take(const std::string& name, FunctionRef<std::string(const at::Tensor&)> why_not) {
    known_.insert(name);
    const auto found = named_.find(name);
    const std::string why = found == named_.end() ? "is missing" : why_not(found->second);
    if (why.empty()) return &found->second;
    problems_.push_back(fmt::format("'{}' {}", name, why));
    return nullptr;
  }
  /// Notes why the tensor of that name, or that there is none, does not fit; nothing where `why_not` is empty.
  void require(const std::string& name, const std::string& why_not) {
    known_.insert(name);
    if (!why_not.empty()) problems_.push_back(fmt::format("'{}' {}", name, why_not));
  }
  std::vector<std::string> problems() {
    for (const auto& [name, value] : named_) {
      if (!known_.contains(name)) problems_.push_back(fmt::format("'{}' is unexpected", name));
    }
    return std::move(problems_);
  }

 private:
  const std::map<std::string, at::Tensor>& named_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

std::string misfit_of_slot(const VariableState& slot, const at::Tensor& value) { return misfit(slot, value).why; }

std::string misfit_of_step(const at::Tensor& value) {
  const std::string why = misfit_of_number(value, at::kLong);
  if (!why.empty()) return why;
  const auto step = value.item<int64_t>();
  return step >= 0 && step <= kMostSteps ? "" : fmt::format("is {}, which is no count of steps", step);
}

std::string misfit_of_setting(const at::Tensor& value, const char* what) {
  const std::string why = misfit_of_number(value, at::kDouble);
  if (!why.empty()) return why;
  const auto number = value.item<double>();
  return number >= 0 && std::isfinite(number) ? "" : fmt::format("is {}, which is no {}", number, what);
}

}  // namespace

std::map<std::string, at::Tensor> named_state(const SavedState& state, std::span<const NamedSlot> slots,
                                              std::span<const std::shared_ptr<VariableState>> variables,
                                              std::span<const std::unique_ptr<GroupRule>> rules) {
  std::map<std::string, at::Tensor> named;
  for (std::size_t s = 0; s < slots.size(); ++s) named.emplace(slots[s].name, state.slots[s]);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    named.emplace(step_name(*variables[i]), at::scalar_tensor(state.steps[i], at::kLong));
  }
  if (state.extra_steps > 0) named.emplace(kExtraSteps, at::scalar_tensor(state.extra_steps, at::kLong));
  for (std::size_t g = 0; g < rules.size(); ++g) {
    if (rules[g]->own()) named.emplace(rule_name(g), tensor_of_text(rules[g]->name()));
    const RuleSettings& now = state.settings[g];
    const RuleSettings& made = rules[g]->made_with();
    named.emplace(rate_name(g), at::scalar_tensor(now.learning_rate, at::kDouble));
    if (state.has_schedule[g]) named.emplace(schedule_name(g), at::scalar_tensor(true, at::kBool));
    if (now.weight_decay != made.weight_decay) {
      named.emplace(decay_name(g), at::scalar_tensor(now.weight_decay, at::kDouble));
    }
    if (now.momentum != made.momentum) named.emplace(momentum_name(g), at::scalar_tensor(now.momentum, at::kDouble));
  }
  return named;
}

SavedState values_of(const std::map<std::string, at::Tensor>& named, std::span<const NamedSlot> slots,
                     std::span<const std::shared_ptr<VariableState>> variables,
                     std::span<const std::unique_ptr<GroupRule>> rules, const std::string& optimizer) {
  Reader reader(named);
  std::vector<const at::Tensor*> found;
  SavedState state;
  for (const NamedSlot& slot : slots) {
    found.push_back(
        reader.take(slot.name, [&](const at::Tensor& value) { return misfit_of_slot(slot.variable.state(), value); }));
  }
  for (const auto& variable : variables) {
    const at::Tensor* step =
        reader.take(step_name(*variable), [](const at::Tensor& value) { return misfit_of_step(value); });
    state.steps.push_back(step ? step->item<int64_t>() : 0);
  }
  const auto take = [&](double& setting, const std::string& name, const char* what) {
    const at::Tensor* value = reader.take(name, [what](const at::Tensor& one) { return misfit_of_setting(one, what); });
    if (value != nullptr) setting = value->item<double>();
  };
  if (named.contains(kExtraSteps)) {
    const at::Tensor* extra = reader.take(kExtraSteps, [](const at::Tensor& value) { return misfit_of_step(value); });
    if (extra != nullptr) state.extra_steps = extra->item<int64_t>();
  }
  for (std::size_t g = 0; g < rules.size(); ++g) {
    const auto saved = named.find(rule_name(g));
    if (!rules[g]->own() && saved == named.end()) continue;
    reader.require(rule_name(g), misfit_of_rule(saved == named.end() ? at::Tensor() : saved->second, *rules[g]));
  }
  const auto misfit_of_flag = [](const at::Tensor& value) { return misfit_of_number(value, at::kBool); };
  for (std::size_t g = 0; g < rules.size(); ++g) {
    const at::Tensor* had = named.contains(schedule_name(g)) ? reader.take(schedule_name(g), misfit_of_flag) : nullptr;
    state.has_schedule.push_back(had != nullptr && had->item<bool>());
  }
  bool has_rates = false;
  for (std::size_t g = 0; g < rules.size(); ++g) has_rates = has_rates || named.contains(rate_name(g));
  for (std::size_t g = 0; g < rules.size(); ++g) {
    RuleSettings settings = rules[g]->made_with();
    settings.learning_rate = rules[g]->learning_rate();
    if (has_rates) take(settings.learning_rate, rate_name(g), "learning rate");
    if (!rules[g]->own() && named.contains(decay_name(g))) take(settings.weight_decay, decay_name(g), "weight decay");
    if (rules[g]->takes_momentum() && named.contains(momentum_name(g))) {
      take(settings.momentum, momentum_name(g), "momentum");
    }
    state.settings.push_back(settings);
  }
  if (const auto problems = reader.problems(); !problems.empty()) {
    throw UsageError(
        "LS-STATE-MISFIT",
        fmt::format("the state given to {} does not fit: {}; nothing was loaded", optimizer, fmt::join(problems, ", ")),
        "give exactly the names, shapes and dtypes that state() gives");
  }
  WrittenMemory written;  // by the slots before this one
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const VariableState& slot = slots[s].variable.state();
    state.slots.push_back(written.copied_if_inside(value_for(slot, *found[s], "Optimizer::load")));
    written.add(slot);
  }
  return state;
}

}  // namespace lockstep::internal::optim
