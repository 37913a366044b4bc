// Batch normalisation over the whole global batch: like torch::nn::BatchNorm1d, 2d and 3d on one device, whatever part
// of the batch each replica has. It stands beside the collectives, because it is a collective with parameters; it knows
// nothing of variables or strategies.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <ostream>

namespace torch::nn {
struct BatchNormOptions;
template <class Derived>
class Cloneable;
template <class Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep {

namespace internal::inline layers {

/// The parameters and buffers of batch normalisation; undefined tensors where it has none.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
};
BatchNormTensors make_batch_norm_tensors(int64_t num_features, bool affine, bool track_running_stats);

/// Normalizes by the running statistics; does not meet.
at::Tensor batch_norm_in_evaluation(const at::Tensor& input, const BatchNormTensors& tensors, double eps);
/// Normalizes by the statistics of all replicas' inputs together, and updates the running ones where there are any.
/// Meets inside a step.
at::Tensor batch_norm_in_training(const at::Tensor& input, const BatchNormTensors& tensors, double eps,
                                  std::optional<double> momentum);

/// A torch::nn module of batch normalisation.
template <class M, class Options>
concept BatchNormOf = requires(const M& module) {
  { module.options } -> std::convertible_to<const Options&>;
  module.running_mean.defined();
  module.num_batches_tracked.defined();
};

}  // namespace internal::layers

/// A torch::nn::Module with the options, parameters and buffers of torch::nn::BatchNorm1d, 2d and 3d, for input
/// [N, C, ...] of two or more dimensions. Use it through SyncBatchNorm, the holder.
///
/// Inside a step, in training mode, mean and variance are those of all replicas' inputs together, in forward and in
/// backward: both meet, also with an input of no samples, which adds nothing. The same holds in evaluation mode where
/// there are no running statistics. Every replica ends with the same running statistics. Outside of steps, and in
/// evaluation mode with running statistics, it does what torch::nn's module does. One value for each channel over all
/// replicas has no variance and is a UsageError; no value at all leaves the running statistics as they are. There is no
/// second derivative in training mode.
///
/// It is a template only so that this header need not include torch::nn, which takes a compiler 14 s: a program that
/// makes a module has included it.
template <class Options>
class SyncBatchNormImplOf : public torch::nn::Cloneable<SyncBatchNormImplOf<Options>> {
 public:
  explicit SyncBatchNormImplOf(const Options& batch_norm_options) : options(batch_norm_options) {
    SyncBatchNormImplOf::reset();
  }
  /// Takes the options and the mode of `other`, a torch::nn::BatchNorm1d, 2d or 3d, and copies of its values.
  template <internal::BatchNormOf<Options> M>
  explicit SyncBatchNormImplOf(const M& other) : SyncBatchNormImplOf(other.options) {
    const auto take = [](at::Tensor& own, const at::Tensor& its) {
      if (own.defined()) own.set_data(its.detach().clone());
    };
    take(weight, other.weight);
    take(bias, other.bias);
    take(running_mean, other.running_mean);
    take(running_var, other.running_var);
    take(num_batches_tracked, other.num_batches_tracked);
    if (weight.defined()) weight.set_requires_grad(other.weight.requires_grad());
    if (bias.defined()) bias.set_requires_grad(other.bias.requires_grad());
    this->train(other.is_training());
  }
  template <internal::BatchNormOf<Options> M>
  explicit SyncBatchNormImplOf(const torch::nn::ModuleHolder<M>& other) : SyncBatchNormImplOf(*other) {}

  void reset() override {
    const auto fresh =
        internal::make_batch_norm_tensors(options.num_features(), options.affine(), options.track_running_stats());
    weight = this->register_parameter("weight", fresh.weight, fresh.weight.defined());
    bias = this->register_parameter("bias", fresh.bias, fresh.bias.defined());
    running_mean = this->register_buffer("running_mean", fresh.running_mean);
    running_var = this->register_buffer("running_var", fresh.running_var);
    num_batches_tracked = this->register_buffer("num_batches_tracked", fresh.num_batches_tracked);
  }

  at::Tensor forward(const at::Tensor& input) {
    const internal::BatchNormTensors tensors{weight, bias, running_mean, running_var, num_batches_tracked};
    if (this->is_training() || !running_mean.defined()) {
      std::optional<double> momentum;  // LibTorch 1.13 has its own optional type
      if (options.momentum()) momentum = *options.momentum();
      return internal::batch_norm_in_training(input, tensors, options.eps(), momentum);
    }
    return internal::batch_norm_in_evaluation(input, tensors, options.eps());
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
  }

  Options options;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
};

using SyncBatchNormImpl = SyncBatchNormImplOf<torch::nn::BatchNormOptions>;

/// `SyncBatchNorm(64)`, `SyncBatchNorm(torch::nn::BatchNormOptions(64).eps(1e-3))`, or from an existing module:
/// `SyncBatchNorm(torch::nn::BatchNorm2d(64))`. See SyncBatchNormImplOf.
using SyncBatchNorm = torch::nn::ModuleHolder<SyncBatchNormImpl>;

}  // namespace lockstep
