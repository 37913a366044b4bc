// What a scheduled step has of variables: a worker's own copies of values that live on parameter servers.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "lockstep/core/function_ref.h"

namespace torch::nn {
class Module;
}
namespace lockstep {
class Variable;
}

namespace lockstep::internal::inline variable {

class ModuleBinding;

/// The base of WorkerContext (server/worker_context.h): what Replicated and Variable ask of it. Used by the thread of
/// the step alone.
class WorkerValues {
 public:
  enum class Change : uint8_t { kAssign, kAdd, kSubtract };
  /// A module that was made, and the LibTorch module in it.
  using MadeModule = std::pair<std::shared_ptr<void>, torch::nn::Module*>;

  /// The worker's module, with the values of this step; `make` makes it at its first use on the worker.
  virtual void* module_of(const std::shared_ptr<ModuleBinding>& binding, FunctionRef<MadeModule()> make) = 0;
  /// The variable's value in this step, the step's own changes included. Trainable ones collect a gradient.
  virtual at::Tensor value_of(const Variable& variable) = 0;
  /// Changes the value for the rest of the step, and for all where the step counts.
  virtual void change(const Variable& variable, Change change, const at::Tensor& value) = 0;

 protected:
  ~WorkerValues() = default;
};

}  // namespace lockstep::internal::variable
