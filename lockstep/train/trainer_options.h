// What a Trainer is told: how a loss is made of a batch, and how a step is made of it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/train/metric_spec.h"
#include "lockstep/variable/module/replicated.h"

namespace lockstep {

/// In which type a model computes.
enum class Precision {
  kFloat32,   // as the model is written
  kBFloat16,  // autocast, in forward and loss, or in a `step`; weights, gradients, slots and sums stay as they are
};

namespace internal::inline train {

/// The type of a function's first parameter, without const and reference. Not for functions that are templates.
template <class F>
struct FirstParameter : FirstParameter<decltype(&F::operator())> {};
template <class R, class First, class... Others>
struct FirstParameter<R (*)(First, Others...)> : std::type_identity<std::remove_cvref_t<First>> {};
template <class R, class F, class First, class... Others>
struct FirstParameter<R (F::*)(First, Others...)> : std::type_identity<std::remove_cvref_t<First>> {};
template <class R, class F, class First, class... Others>
struct FirstParameter<R (F::*)(First, Others...) const> : std::type_identity<std::remove_cvref_t<First>> {};

[[noreturn]] void throw_other_module_in_forward(const std::type_info& wanted, const std::type_info& given);

/// TrainerOptions::forward of a model whose module is not known yet: the function names the module's type.
class UntypedForward {
 public:
  UntypedForward() = default;
  template <class F>
  requires(!std::is_base_of_v<UntypedForward, F>) UntypedForward(F fn) {  // NOLINT(google-explicit-constructor)
    constexpr bool kIsTyped = requires { typename FirstParameter<F>::type; };
    static_assert(kIsTyped,
                  "lockstep: a .forward whose parameters have the type auto is given in the braces of the Trainer: "
                  "Trainer(strategy, model, optimizer, {.loss = ..., .forward = ...}); in a TrainerOptions of its own "
                  "its first parameter is a reference to the type that the model's factory returns");
    if constexpr (kIsTyped) {
      using Module = typename FirstParameter<F>::type;
      wanted_ = &typeid(Module);
      call_ = [fn = std::move(fn)](void* module, const Batch& batch) mutable -> at::Tensor {
        return fn(*static_cast<Module*>(module), batch);
      };
    }
  }
  explicit operator bool() const { return wanted_ != nullptr; }

 private:
  template <class M>
  friend class ForwardOf;
  const std::type_info* wanted_ = nullptr;
  std::function<at::Tensor(void* module, const Batch& batch)> call_;
};

/// TrainerOptions::forward of a model of which make_module's factory returns M.
template <class M>
class ForwardOf {
 public:
  using Bound = typename Replicated<M>::Bound;

  ForwardOf() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, ForwardOf>) ForwardOf(F fn) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<F, UntypedForward>) {
      if (!fn) return;
      if (*fn.wanted_ != typeid(M)) throw_other_module_in_forward(*fn.wanted_, typeid(M));
      call_ = [call = std::move(fn.call_)](Bound& module, const Batch& batch) {
        return call(const_cast<std::remove_const_t<M>*>(static_cast<const M*>(&module)), batch);
      };
    } else if constexpr (std::is_invocable_r_v<at::Tensor, F&, Bound&, const Batch&>) {
      call_ = std::move(fn);
    } else {
      constexpr bool kTakesModule = requires(F & f, Bound & module, const Batch& batch) {
        at::Tensor(f(*module, batch));
      };
      static_assert(kTakesModule,
                    "lockstep: .forward must be callable as forward(module, batch) and return a tensor: `module` is "
                    "what model(ctx) gives, a reference to the holder or shared_ptr that the model's factory returns, "
                    "and `batch` a const Batch&");
      if constexpr (kTakesModule) {
        call_ = [fn = std::move(fn)](Bound& module, const Batch& batch) mutable { return fn(*module, batch); };
      }
    }
  }
  explicit operator bool() const { return static_cast<bool>(call_); }
  at::Tensor operator()(Bound& module, const Batch& batch) const { return call_(module, batch); }

 private:
  std::function<at::Tensor(Bound& module, const Batch& batch)> call_;
};
template <>
class ForwardOf<void> : public UntypedForward {
 public:
  using UntypedForward::UntypedForward;
};

}  // namespace internal::train

/// What TrainerOptions is for a model of which the factory returns M. Programs write TrainerOptions, or braces.
template <class M>
struct BasicTrainerOptions {
  /// The mean loss of one replica's part, [batch.samples()] of its rows, a tensor without dimensions. It gets the
  /// weight of the part by itself (ReplicaContext::scale_loss); of an empty part it may be NaN. Where a batch has
  /// padding, Batch::mean() leaves that out.
  std::function<at::Tensor(const at::Tensor& output, const Batch& batch)> loss = {};
  /// The model's output for one replica's part, where the model takes more than `batch.input`, or gives more than one
  /// tensor. `module` is what model(ctx) gives. Without it the output is `module->forward(batch.input)`.
  internal::ForwardOf<M> forward = {};
  /// A step of the program's own, in place of forward, loss, backward and the optimizer's step: several optimizers, a
  /// GAN. It is called as the step function of Strategy::run, and returns the mean loss of the replica's part, without
  /// its weight, for the logs. Then `loss` is for evaluations only. Not together with `accumulate`.
  std::function<at::Tensor(ReplicaContext& ctx, const Batch& batch)> step = {};
  /// What is counted beside the loss, in training and evaluations. Not of a `step` of the program's own.
  std::vector<MetricSpec> metrics = {};
  std::optional<double> clip_global_norm = std::nullopt;  // see StepOptions::clip_global_norm
  /// So many batches of the data set make one step, the rest of an epoch one step of fewer. Each counts by its samples.
  int64_t accumulate = 1;
  Precision precision = Precision::kFloat32;
};
using TrainerOptions = BasicTrainerOptions<void>;

}  // namespace lockstep
