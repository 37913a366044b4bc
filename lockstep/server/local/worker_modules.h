// A worker's own copies of the strategy's modules, and what they have of the servers' values.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/pull_parts.h"
#include "lockstep/server/local/step_under_way.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep::internal::inline server {

/// Of one worker, whose thread alone calls it.
class WorkerModules {
 public:
  /// The values of variables, as put_together() gives them.
  using Pull = FunctionRef<std::vector<PulledValue>(WantedVariables wanted, FunctionRef<at::Tensor(std::size_t)> old)>;

  /// One thread at a time holds `factories` and calls functions of the program that make modules.
  WorkerModules(const Strategy& strategy, std::mutex& factories) : strategy_(strategy), factories_(factories) {}

  /// The module of the binding, which is made at its first use. At the step's first use it gets the servers' values.
  void* use(StepUnderWay& step, const std::shared_ptr<ModuleBinding>& binding,
            FunctionRef<WorkerValues::MadeModule()> make, Pull pull);
  /// The tensor of the variable in a module that the step has used; undefined where none has it.
  at::Tensor value_of(const StepUnderWay& step, const VariableState& variable) const;
  /// Calls `fn` for each tensor of the modules that the step has used.
  void for_each_of(const StepUnderWay& step, FunctionRef<void(const Variable&, at::Tensor&)> fn);
  void drop_gradients(const StepUnderWay& step);
  /// Adds a finding where the step wrote parameters of these copies, as an optimizer of torch::optim does.
  void report_own_writes(const StepUnderWay& step);

 private:
  /// A module of this worker, over variables of the strategy.
  struct Module {
    std::shared_ptr<void> made;
    std::shared_ptr<ModuleBinding> binding;
    torch::nn::Module* module;
    std::vector<std::pair<Variable, at::Tensor>> tensors;
    std::vector<HadAt> have = {};
    std::vector<int64_t> versions =
        {};  // of the tensors, as they were filled: other numbers mean that a step has written
    // Writes that versions do not show are looked for in the first steps, by digests of the parameters.
    int steps = 0;
    uint64_t filled = 0;
    bool has_own_writes = false;  // found once: nothing of it is taken for what the servers have
  };

  void refresh(Module& module, const StepUnderWay& step, Pull pull);

  const Strategy& strategy_;
  std::mutex& factories_;
  std::map<const ModuleBinding*, Module> modules_;
};

}  // namespace lockstep::internal::server
