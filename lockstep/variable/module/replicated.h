// A module that exists once on each replica, over variables that all replicas share.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/variable/module/buffers.h"
#include "lockstep/variable/module/load_options.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {

struct ModuleOptions {
  std::string name = "model";        // begins the names of its variables; no other module of the strategy may have it
  Buffers buffers = Buffers::kAuto;  // what becomes of buffers that each replica's forward pass moves
  std::chrono::milliseconds limit = {};  // how long other workers wait for the factory; 0: WorkerTimeouts::work
};

namespace internal::inline variable {

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

/// An M that cannot be assigned, so that each replica keeps the module that make_module bound.
template <class M>
class Bound : public M {
 public:
  explicit Bound(M made) : M(std::move(made)) {}
  Bound(const Bound&) = default;
  Bound(Bound&&) = default;
  ~Bound() = default;
  Bound& operator=(const Bound&) = delete;
  Bound& operator=(Bound&&) = delete;
};

[[noreturn]] void throw_empty_replicated();
[[noreturn]] void throw_other_module(const ModuleBinding& binding, int64_t r);
/// The index of this replica's module. Throws where the context is not valid here or belongs to another strategy, and
/// where a parameter is damaged.
int64_t module_index(const ModuleBinding& binding, const ReplicaContext& context);

std::map<std::string, at::Tensor> module_state(const ModuleBinding& binding);
LoadInfo load_module(const ModuleBinding& binding, const std::map<std::string, at::Tensor>& named,
                     const LoadOptions& options);
/// Copies the bound module's values into the module that `make` makes. `make` runs under the random stream that the
/// bound module's initial values came from.
void export_into(const ModuleBinding& binding, FunctionRef<torch::nn::Module&()> make);

}  // namespace internal::variable

/// A handle. Its copies mean the same modules, which live as long as any copy and may outlive their strategy.
///
/// Parameters, frozen ones too, are variables named "<module name>.<parameter>": mirrored, unless the strategy trains
/// them locally. All buffers are sync-on-read; ModuleOptions::buffers says what becomes of those that replicas move
/// apart, without it a mean of floating-point ones and replica 0's of others. M is what the factory returns.
///
/// A module has all its parameters, buffers and submodules when the factory returns it. No optimizer would train what
/// is registered or replaced later. state(), load(), export_module() and make_optimizer() throw a UsageError then, and
/// so does every `.verify_every`-th run.
template <class M>
class Replicated {
 public:
  using Module = M;
  /// What the call operator returns: an M that cannot be assigned.
  using Bound = std::conditional_t<std::is_final_v<M>, const M, internal::Bound<M>>;

  /// An empty handle: every use but defined() is a UsageError.
  Replicated() = default;
  bool defined() const { return binding_ != nullptr; }

  /// This replica's module. Use it inside the replica's step only, on its thread; elsewhere the call is a UsageError.
  /// Its parameters are read-only for the step: only the library's optimizer and assign() change them.
  Bound& operator()(const ReplicaContext& context) const {
    const int64_t r = internal::module_index(*binding(), context);
    Bound& module = (*modules_)[static_cast<std::size_t>(r)];
    if (!binding_->has(r, internal::module_in<M>(module).get())) internal::throw_other_module(*binding_, r);
    return module;
  }

  /// In a scheduled step (WorkerContext): the worker's module, which has the step's values. The factory makes it at its
  /// first use on each worker.
  template <std::derived_from<internal::WorkerValues> Context>
  Bound& operator()(Context& context) const {
    const auto make = [this]() -> internal::WorkerValues::MadeModule {
      auto made = std::make_shared<Stored>(factory_());
      return {made, internal::module_in<M>(*made).get()};
    };
    return *static_cast<Stored*>(static_cast<internal::WorkerValues&>(context).module_of(binding(), make));
  }

  /// Parameters, then buffers, in order of registration. A tensor with several names is one variable, under the first.
  const std::vector<Variable>& variables() const { return binding()->variables(); }

  /// Copies of all values by their names in the module ("fc1.weight"), as in a module without Lockstep. Outside of
  /// steps.
  std::map<std::string, at::Tensor> state() const { return internal::module_state(*binding()); }

  /// Sets all replicas from tensors named as in state(). Before all of the names may stand the module's name, "module."
  /// as PyTorch's DDP has it, or both; torch.compile's "_orig_mod." may stand anywhere. Of a tensor with several names
  /// one suffices. Throws a UsageError (LS-STATE-MISFIT) that lists missing and unexpected names, every tensor that
  /// does not fit, and two names of one tensor that were given different values, and a UsageError while an average is
  /// swapped in; then nothing has changed. Moving averages of what is loaded start anew from it; an optimizer's slots
  /// stay, as Optimizer::load sets them. Outside of steps.
  ///
  ///     model.load(lockstep::load_tensors("backbone.pt"), {.allow_missing = true});
  LoadInfo load(const std::map<std::string, at::Tensor>& named, const LoadOptions& options = {}) const {
    return internal::load_module(*binding(), named, options);
  }

  /// A fresh module from the factory with the present values, independent of this one. Outside of steps.
  M export_module() const {
    std::unique_ptr<M> made;
    internal::export_into(*binding(), [&]() -> torch::nn::Module& {
      made = std::make_unique<M>(factory_());
      return *internal::module_in<M>(*made);
    });
    return std::move(*made);
  }

  /// For the library's own use: `(*modules)[r]` is local replica r's.
  Replicated(std::shared_ptr<internal::ModuleBinding> binding, const std::shared_ptr<std::vector<M>>& modules,
             std::function<M()> factory)
      : binding_(std::move(binding)), modules_(std::make_shared<std::vector<Stored>>()), factory_(std::move(factory)) {
    modules_->reserve(modules->size());
    for (M& module : *modules) modules_->emplace_back(std::move(module));
  }
  const std::shared_ptr<internal::ModuleBinding>& binding() const {
    if (!binding_) internal::throw_empty_replicated();
    return binding_;
  }

 private:
  using Stored = std::remove_const_t<Bound>;

  std::shared_ptr<internal::ModuleBinding> binding_;
  std::shared_ptr<std::vector<Stored>> modules_;
  std::function<M()> factory_;
};

}  // namespace lockstep
