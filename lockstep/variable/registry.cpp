#include "lockstep/variable/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::internal {

void VariableRegistry::require_fresh_variable(const std::string& name) {
  forget_unused();
  const bool taken =
      std::any_of(variables_.begin(), variables_.end(), [&](const auto& one) { return one->name() == name; });
  if (taken) {
    throw UsageError(fmt::format("a second variable named '{}' was asked for", name),
                     "give each variable a name of its own");
  }
}

void VariableRegistry::require_fresh_module(const std::string& name) {
  forget_unused();
  const bool taken =
      std::any_of(modules_.begin(), modules_.end(), [&](const auto& one) { return one->name() == name; });
  if (taken) {
    throw UsageError(fmt::format("a second module named '{}' was asked for", name),
                     "name each module: make_module(factory, {.name = \"generator\"})");
  }
}

std::string VariableRegistry::fresh_name(const std::string& base) {
  forget_unused();
  for (int64_t& next = next_number_[base];;) {
    const std::string name = next == 0 ? base : fmt::format("{}_{}", base, next);
    ++next;
    if (std::none_of(variables_.begin(), variables_.end(), [&](const auto& one) { return one->name() == name; }))
      return name;
  }
}

void VariableRegistry::add(std::shared_ptr<ModuleBinding> module) {
  for (const Variable& variable : module->variables()) variables_.push_back(variable.shared_state());
  modules_.push_back(std::move(module));
}

void VariableRegistry::forget_unused() {
  std::erase_if(modules_, [](const auto& module) { return module.use_count() == 1; });
  std::erase_if(variables_, [](const auto& variable) { return variable.use_count() == 1; });
}

}  // namespace lockstep::internal
