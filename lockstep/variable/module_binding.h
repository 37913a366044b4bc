// Binds the modules of all replicas to variables: parameters become mirrored, buffers sync-on-read.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/variable/variable.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

class ReplicaGroup;
class VariableRegistry;

/// The modules of one Replicated and the variables behind them.
class ModuleBinding {
 public:
  /// `modules[r]` is local replica r's, fresh from the factory. Throws a UsageError where they are not alike, share a
  /// module or tensor, have a tensor that is not dense or not in the host's memory, two tensors of which one is a
  /// parameter and which share elements, or a name that another variable of `registry` has; and a DivergenceError where
  /// initial values differ. Both name the variable and the replica. Then no module was touched. Afterwards each
  /// parameter's memory is dense and its own, parameters of all replicas are equal, and those that the registry's
  /// placement puts into one copy are one memory. `place` is the user's line.
  ModuleBinding(std::shared_ptr<ReplicaGroup> group, std::string name,
                std::vector<std::shared_ptr<torch::nn::Module>> modules, VariableRegistry& registry,
                const std::source_location& place);

  const std::string& name() const { return name_; }
  const std::source_location& place() const { return place_; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// Parameters first, then buffers, each in order of registration; one that is registered twice stands once.
  const std::vector<Variable>& variables() const { return variables_; }
  /// Throws the DivergenceError of the first parameter that is damaged. Any thread.
  void require_sound() const;
  /// Whether local replica r's module is `module`. Any thread.
  bool has(int64_t r, const torch::nn::Module* module) const {
    return modules_[static_cast<std::size_t>(r)].get() == module;
  }
  /// Throws the UsageError of parameters and buffers that a replica's module has got, lost or replaced since it was
  /// bound. Outside of steps, or all replicas at rest.
  void check_registered() const;

  /// Sets all variables from tensors that are named like the module's parameters and buffers, or, all of them, with the
  /// module's name before that. Throws a UsageError that lists missing and unexpected names and what does not fit, or
  /// that of a variable for which another value stands in; then nothing has changed. A buffer takes the shape that it
  /// was made with or has now.
  void load(const std::map<std::string, at::Tensor>& named) const;
  /// Copies of all values by name within the module, aliases included.
  std::map<std::string, at::Tensor> state() const;
  /// Copies all values into a module that is alike; a UsageError where it is not.
  void copy_to(torch::nn::Module& module) const;

  /// Puts local replica r's module, with all its parts, into evaluation mode, and back into the modes of before.
  /// Called from replica r's thread. Leaving what was not entered does nothing.
  void enter_evaluation(int64_t r);
  void leave_evaluation(int64_t r) noexcept;

 private:
  struct Name {
    std::string in_module;  // "fc1.weight"
    std::size_t variable;   // index in variables_
  };
  const Name* find(const std::string& in_module) const;

  const std::shared_ptr<ReplicaGroup> group_;
  const std::string name_;
  const std::source_location place_;
  const std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<Variable> variables_;
  std::vector<Name> names_;
  /// By replica, whose thread it is: while it evaluates, each part of its module and whether it was in training mode.
  std::vector<std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>> modes_;
};

}  // namespace lockstep::internal
