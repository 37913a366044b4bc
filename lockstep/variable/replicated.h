// A module of which every replica has its own, over variables that they share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/replica/replica_context.h"
#include "lockstep/variable/module_binding.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

struct ModuleOptions {
  std::string name = "model";  // before the names of its variables; unlike that of every other module of the strategy
};

namespace internal {

/// The LibTorch module in what a factory returns: a module holder, or a shared_ptr to a module.
template <class M>
std::shared_ptr<torch::nn::Module> module_in(const M& made) {
  if constexpr (requires { made.is_empty(); }) {
    if (made.is_empty()) return nullptr;
    return made.ptr();
  } else {
    return made;
  }
}

/// The index of this replica's module; throws where the context is not valid here, of another strategy, or where a
/// parameter is damaged.
int64_t module_index(const ModuleBinding& binding, const ReplicaContext& context);

std::map<std::string, at::Tensor> module_state(const ModuleBinding& binding);
void load_module(const ModuleBinding& binding, const std::map<std::string, at::Tensor>& named);
/// Calls `make` under the stream that the module's initial values came from.
void under_module_stream(const ModuleBinding& binding, const std::function<void()>& make);
void copy_module(const ModuleBinding& binding, torch::nn::Module& module);

}  // namespace internal

/// A handle; copies mean the same modules, which live as long as any of them, also beyond their strategy.
///
/// Parameters are mirrored variables named "<module name>.<parameter>", frozen ones too; all buffers are sync-on-read:
/// floating-point ones aggregate by kMean, others by kOnlyFirstReplica. M is what the factory returns.
template <class M>
class Replicated {
 public:
  using Module = M;

  /// This replica's module, to be used inside its step only, on its thread; a UsageError elsewhere. Its parameters are
  /// read-only for the step: they change by the library's optimizer, or by assign().
  M& operator()(const ReplicaContext& context) const { return (*modules_)[internal::module_index(*binding_, context)]; }

  /// Parameters, then buffers, in order of registration; a tensor with several names is one variable, under the first.
  const std::vector<Variable>& variables() const { return binding_->variables(); }

  /// Copies of all values by their names in the module ("fc1.weight"), as a torch::nn::Module of one's own names them.
  /// Outside of steps.
  std::map<std::string, at::Tensor> state() const { return internal::module_state(*binding_); }

  /// Sets all replicas from tensors named as in state(), with or without the module's name before them. A UsageError
  /// that lists every missing and unexpected name and every wrong shape changes nothing. Outside of steps.
  void load(const std::map<std::string, at::Tensor>& named) const { internal::load_module(*binding_, named); }

  /// A fresh module from the factory with the present values, independent of this one. Outside of steps.
  M export_module() const {
    std::unique_ptr<M> made;
    internal::under_module_stream(*binding_, [&] { made = std::make_unique<M>(factory_()); });
    internal::copy_module(*binding_, *internal::module_in(*made));
    return std::move(*made);
  }

  /// For the library's own use.
  Replicated(std::shared_ptr<internal::ModuleBinding> binding, std::shared_ptr<std::vector<M>> modules,
             std::function<M()> factory)
      : binding_(std::move(binding)), modules_(std::move(modules)), factory_(std::move(factory)) {}
  const std::shared_ptr<internal::ModuleBinding>& binding() const { return binding_; }

 private:
  std::shared_ptr<internal::ModuleBinding> binding_;
  std::shared_ptr<std::vector<M>> modules_;
  std::function<M()> factory_;
};

}  // namespace lockstep
