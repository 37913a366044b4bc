#include "lockstep/server/local/worker_modules.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/server/record/value_digest.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

constexpr int kStepsWithDigests = 2;

uint64_t digest_of_parameters(const std::vector<std::pair<Variable, at::Tensor>>& tensors) {
  uint64_t digest = 0;
  for (const auto& [variable, tensor] : tensors) {
    if (variable.state().on_write()) digest = digest_with(digest, tensor);
  }
  return digest;
}

}  // namespace

void* WorkerModules::use(StepUnderWay& step, const std::shared_ptr<ModuleBinding>& binding,
                         FunctionRef<WorkerValues::MadeModule()> make, Pull pull) {
  auto found = modules_.find(binding.get());
  if (found == modules_.end()) {
    const std::lock_guard<std::mutex> lock(factories_);
    RandomStream stream;
    stream.restart(StreamKey::of_module(strategy_.seed(), binding->name()));
    const RandomScope scope(stream);
    auto [made, module] = make();
    for (const auto& part : module->modules()) {
      if (part->name().find("SyncBatchNorm") == std::string::npos) continue;
      throw UsageError("LS-SCHEDULE",
                       fmt::format("module '{}' has a SyncBatchNorm, and workers that run scheduled steps never meet",
                                   binding->name()),
                       "use BatchNorm, or a strategy whose replicas meet");
    }
    Module mine{.made = std::move(made), .binding = binding, .module = module, .tensors = binding->tensors_of(*module)};
    mine.have.resize(mine.tensors.size());
    mine.versions.resize(mine.tensors.size());
    found = modules_.emplace(binding.get(), std::move(mine)).first;
  }
  if (std::ranges::find(step.modules, binding.get()) == step.modules.end()) {
    refresh(found->second, step, pull);
    step.modules.push_back(binding.get());
    if (step.evaluation) {
      for (auto& part : found->second.module->modules()) {
        const bool is_training = part->is_training();
        step.modes.emplace_back(std::move(part), is_training);
      }
      found->second.module->eval();
    }
  }
  return found->second.made.get();
}

void WorkerModules::refresh(Module& module, const StepUnderWay& step, Pull pull) {
  WantedVariables wanted;
  wanted.part = step.part;
  wanted.whole = step.evaluation != nullptr;
  for (std::size_t i = 0; i < module.tensors.size(); ++i) {
    const Variable& variable = module.tensors[i].first;
    wanted.variables.push_back(variable);
    // Forward passes move buffers, and steps that did not count may have written parameters.
    const bool is_as_filled =
        !module.has_own_writes && static_cast<int64_t>(module.tensors[i].second._version()) == module.versions[i];
    wanted.have.push_back(variable.state().on_write() && is_as_filled ? module.have[i] : HadAt());
  }
  std::vector<PulledValue> values = pull(std::move(wanted), [&](std::size_t i) { return module.tensors[i].second; });
  for (std::size_t i = 0; i < values.size(); ++i) {
    at::Tensor& mine = module.tensors[i].second;
    // What the step has read or changed before is the variable's value for all of it.
    const auto known = step.values.find(&module.tensors[i].first.state());
    const bool is_known = known != step.values.end();
    if (!is_known && !values[i].value.defined()) continue;
    mine.set_data(is_known ? known->second.detach().clone() : values[i].value);
    module.have[i] = is_known ? HadAt() : std::move(values[i].at);
    module.versions[i] = static_cast<int64_t>(mine._version());
  }
  if (++module.steps <= kStepsWithDigests) module.filled = digest_of_parameters(module.tensors);
}

at::Tensor WorkerModules::value_of(const StepUnderWay& step, const VariableState& variable) const {
  for (const ModuleBinding* used : step.modules) {
    for (const auto& [one, tensor] : modules_.at(used).tensors)
      if (&one.state() == &variable) return tensor;
  }
  return {};
}

void WorkerModules::for_each_of(const StepUnderWay& step, FunctionRef<void(const Variable&, at::Tensor&)> fn) {
  for (const ModuleBinding* used : step.modules) {
    for (auto& [variable, tensor] : modules_.at(used).tensors) fn(variable, tensor);
  }
}

void WorkerModules::drop_gradients(const StepUnderWay& step) {
  for_each_of(step, [](const Variable& /*variable*/, at::Tensor& tensor) { tensor.mutable_grad() = at::Tensor(); });
}

void WorkerModules::report_own_writes(const StepUnderWay& step) {
  for (const ModuleBinding* used : step.modules) {
    Module& module = modules_.at(used);
    std::string name;
    for (std::size_t i = 0; i < module.tensors.size() && name.empty(); ++i) {
      const auto& [variable, tensor] = module.tensors[i];
      if (!variable.state().on_write()) continue;
      const auto changed = step.changed.find(tensor.unsafeGetTensorImpl());
      const int64_t expected = changed == step.changed.end() ? module.versions[i] : changed->second;
      if (static_cast<int64_t>(tensor._version()) != expected) name = variable.name();
    }
    if (name.empty() && step.changed.empty() && module.steps <= kStepsWithDigests &&
        digest_of_parameters(module.tensors) != module.filled) {
      name = module.binding->name();
    }
    if (name.empty()) continue;
    module.has_own_writes = true;
    StrategyAccess::findings(strategy_).add("LS-COPY-WRITTEN", name.c_str(), step.step.step, [&] {
      return fmt::format(
          "step {}: the step wrote '{}' in its worker's own copy, as an optimizer of torch::optim does; nothing learns "
          "from that, and the copy is dropped; push the gradients, and let an optimizer of strategy.make_optimizer "
          "update",
          step.step.step, name);
    });
  }
}

}  // namespace lockstep::internal::server
