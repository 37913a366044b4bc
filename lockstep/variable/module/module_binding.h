// Binds the modules of all replicas to variables: parameters become mirrored or trained locally, buffers sync-on-read.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/variable/module/buffers.h"
#include "lockstep/variable/module/load_options.h"
#include "lockstep/variable/variable.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline variable {

class DerivedStates;
class VariableRegistry;

/// The modules of one Replicated and the variables behind them.
class ModuleBinding {
 public:
  /// `next()` gives each local replica's module in turn, fresh from the factory; `place` is the user's line. Throws a
  /// UsageError where the modules are not alike, where two of them share a module or a tensor, where one shares a
  /// tensor or memory with a living variable of `registry`, where a tensor is not dense or not in the host's memory,
  /// where a parameter shares elements with another tensor, or where another variable of `registry` has the name; and a
  /// DivergenceError where initial values differ. Both errors name the variable and the replica.
  ///
  /// Afterwards each parameter has dense memory that no other variable shares, the parameters of all replicas are
  /// equal, and those that the registry's placement puts into one copy lie in one memory. A parameter that has been
  /// compared is put there before next() is called again, so that at most two modules' parameters are in memory for one
  /// copy; but not one that is a view, or whose memory another tensor shows.
  ModuleBinding(std::shared_ptr<ReplicaGroup> group, std::string name, Buffers buffers,
                FunctionRef<std::shared_ptr<torch::nn::Module>()> next, VariableRegistry& registry,
                const std::source_location& place);

  const std::string& name() const { return name_; }
  const std::source_location& place() const { return place_; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// Parameters first, then buffers, each in order of registration. A tensor that is registered twice is listed once.
  const std::vector<Variable>& variables() const { return variables_; }
  /// That of this process's first replica.
  const torch::nn::Module& first_module() const { return *modules_.front(); }
  /// Local replica r's.
  const std::shared_ptr<torch::nn::Module>& module(int64_t r) const { return modules_[static_cast<std::size_t>(r)]; }
  /// Throws a DivergenceError for the first parameter that is damaged. Any thread.
  void require_sound() const;
  /// Whether local replica r's module is `module`. Any thread.
  bool has(int64_t r, const torch::nn::Module* module) const {
    return modules_[static_cast<std::size_t>(r)].get() == module;
  }
  /// Throws a UsageError where a replica's module has gained, lost or replaced a parameter or a buffer since it was
  /// bound. Call outside of steps, or while all replicas are at rest.
  void check_registered() const;

  /// Sets all variables from tensors that are named like the module's parameters and buffers; see Replicated::load for
  /// what may stand before all names. Throws a UsageError that lists missing and unexpected names and what does not
  /// fit, and a UsageError while another value stands in for a variable's own; then nothing has changed. A buffer
  /// accepts the shape that it was made with and the shape that it has now. What was made from the variables starts
  /// anew.
  LoadInfo load(const std::map<std::string, at::Tensor>& named, const LoadOptions& options) const;
  /// Full names of tensors that are registered twice: by each name but the variable's own, the variable's.
  std::map<std::string, std::string> other_names() const;
  /// Copies of all values by name within the module, aliases included.
  std::map<std::string, at::Tensor> state() const;
  /// The tensors that another module of the same factory has registered, each with its variable. A UsageError where
  /// its names, shapes or dtypes differ.
  std::vector<std::pair<Variable, at::Tensor>> tensors_of(const torch::nn::Module& module) const;
  /// Copies all values into `module`; a UsageError as tensors_of().
  void copy_to(torch::nn::Module& module) const;

  /// Put local replica r's module, with all its submodules, into evaluation mode, and back into the modes of before.
  /// Called from replica r's thread. leave_evaluation() without enter_evaluation() does nothing.
  void enter_evaluation(int64_t r);
  void leave_evaluation(int64_t r) noexcept;

 private:
  struct Name {
    std::string in_module;  // "fc1.weight"
    std::size_t variable;   // index in variables_
  };
  const Name* find(const std::string& in_module) const;
  /// The module's name for a given one, where it has that. torch.compile's "_orig_mod." counts for nothing.
  const Name* find_given(std::string_view given) const;
  /// What stands before all given names and is no part of the module's names.
  std::string prefix_of(const std::map<std::string, at::Tensor>& named) const;
  /// "'backbone.' stands before 3 of the names": what else stands before names that would fit without it; or nothing.
  std::string strange_prefix(const std::vector<std::string>& unexpected) const;
  /// A value for each variable, as it can hold it; an undefined one for what was not given. Throws what load() throws.
  std::vector<at::Tensor> fitting(const std::map<std::string, at::Tensor>& named, const LoadOptions& options,
                                  LoadInfo& info) const;

  const std::shared_ptr<ReplicaGroup> group_;
  const std::string name_;
  const std::source_location place_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<Variable> variables_;
  std::vector<Name> names_;
  /// By replica, used by that replica's thread. While the replica evaluates: each submodule of its module, and whether
  /// the submodule was in training mode.
  std::vector<std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>> modes_;
  const std::shared_ptr<DerivedStates> derived_;  // of the strategy
};

}  // namespace lockstep::internal::variable
