#include "lockstep/layers/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline layers {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Statistics of each channel over some samples, in float64. joined() makes those of a whole from those of its parts.
struct Moments {
  double count = 0;  // values for each channel
  at::Tensor mean;   // 0 where there are no values
  at::Tensor m2;     // sum of squared distances from the mean
};

Moments joined(const Moments& a, const Moments& b) {
  const double count = a.count + b.count;
  if (count == 0) return a;
  const at::Tensor distance = b.mean - a.mean;
  return {count, a.mean + distance * (b.count / count),
          a.m2 + b.m2 + distance * distance * (a.count * b.count / count)};
}

double values_for_each_channel(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
}

Moments moments_of(const at::Tensor& input) {
  Moments moments;
  moments.count = values_for_each_channel(input);
  if (moments.count == 0) {
    moments.mean = at::zeros({input.size(1)}, at::kDouble);
    moments.m2 = at::zeros({input.size(1)}, at::kDouble);
    return moments;
  }
  const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0);
  moments.mean = mean.to(at::kDouble);
  moments.m2 = variance.to(at::kDouble) * moments.count;
  return moments;
}

/// The moments over all replicas, by one meeting, where this thread is in a step; otherwise those of `input` alone.
Moments moments_of_all(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  Moments own = moments_of(input.detach());
  const ReplicaContext* context = current_context();
  if (!context) return own;
  const at::Tensor count = at::full({1}, own.count, at::kDouble);
  const at::Tensor all = all_gather(*context, at::cat({count, own.mean, own.m2}).unsqueeze(0), 0, {});
  const int64_t channels = input.size(1);
  const auto of_replica = [&](int64_t r) {
    const at::Tensor row = all[r];
    return Moments{row[0].item<double>(), row.narrow(0, 1, channels), row.narrow(0, 1 + channels, channels)};
  };
  return fold_in_tree_order(0, all.size(0), of_replica, joined);
}

/// [C] as [1, C, 1, ...], for an input of so many dimensions.
at::Tensor by_channel(const at::Tensor& values, int64_t dimensions) {
  std::vector<int64_t> shape(static_cast<std::size_t>(dimensions), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

/// Sums over all dimensions except that of channels, in float64.
at::Tensor sums_by_channel(const at::Tensor& values) {
  std::vector<int64_t> dimensions{0};
  for (int64_t d = 2; d < values.dim(); ++d) dimensions.push_back(d);
  return at::sum(values, dimensions, /*keepdim=*/false, at::kDouble);
}

/// (input - mean) / sqrt(var + eps), where mean and variance are functions of all replicas' inputs.
struct NormalizeFunction : torch::autograd::Function<NormalizeFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& mean,
                            const at::Tensor& inverse_std, double count) {
    const at::Tensor scale = by_channel(inverse_std, input.dim());
    at::Tensor output = at::sub(input, by_channel(mean, input.dim())).mul_(scale);
    ctx->save_for_backward({output, scale});
    ctx->saved_data["count"] = count;
    ctx->saved_data["in_step"] = current_context() != nullptr;
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw UsageError("LS-SECOND-DERIVATIVE", "a second derivative of SyncBatchNorm was asked for",
                       "call backward without create_graph, or use torch::nn's batch normalisation");
    }
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& output = saved[0];
    const at::Tensor& scale = saved[1];
    const at::Tensor& gradient = gradients.front();
    at::Tensor sums = at::stack({sums_by_channel(gradient), sums_by_channel(gradient * output)});
    if (ctx->saved_data["in_step"].toBool()) {
      const ReplicaContext* context = current_context();
      if (!context) {
        throw UsageError("LS-OUTSIDE-STEP", "backward went through SyncBatchNorm outside of a step",
                         "call backward() inside the step function, on the replica's thread");
      }
      sums = all_reduce(*context, Reduction::kSum, sums, {});
    }
    const double count = ctx->saved_data["count"].toDouble();
    const at::Tensor means = (count > 0 ? sums / count : sums).to(gradient.scalar_type());
    at::Tensor result = at::sub(gradient, by_channel(means[0], output.dim()));
    result.addcmul_(output, by_channel(means[1], output.dim()), -1).mul_(scale);
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_input(const at::Tensor& input, const BatchNormTensors& tensors) {
  // Outside of steps the input may be on any device, as with torch::nn's module.
  const bool elsewhere = input.defined() && !input.device().is_cpu() && !current_context();
  if (!elsewhere) check_operand("SyncBatchNorm", input);
  const at::ScalarType type = input.scalar_type();
  if (type != at::kFloat && type != at::kDouble && accumulation_type_of(type) == type) {
    throw UsageError("LS-DTYPE", fmt::format("SyncBatchNorm was given a tensor of {}", c10::toString(type)),
                     "give a tensor of float32, float64, float16 or bfloat16");
  }
  const at::Tensor& like = tensors.weight.defined() ? tensors.weight : tensors.running_mean;
  if (input.dim() < 2 || (like.defined() && input.size(1) != like.numel())) {
    throw UsageError("LS-SHAPE", fmt::format("SyncBatchNorm was given shape [{}]", fmt::join(input.sizes(), ", ")),
                     like.defined() ? fmt::format("give [N, {}, ...]", like.numel()) : "give [N, C, ...]");
  }
}

void update_running_statistics(const BatchNormTensors& tensors, const Moments& moments,
                               std::optional<double> momentum) {
  const at::NoGradGuard no_grad;
  at::Tensor batches = tensors.num_batches_tracked;
  batches.add_(1);
  const double factor = momentum ? *momentum : 1 / batches.item<double>();
  const auto move_towards = [&](const at::Tensor& running, const at::Tensor& now) {
    running.copy_(running.to(at::kDouble) * (1 - factor) + now * factor);
  };
  move_towards(tensors.running_mean, moments.mean);
  move_towards(tensors.running_var, moments.m2 / (moments.count - 1));  // the unbiased one, as torch::nn keeps
}

}  // namespace

BatchNormTensors make_batch_norm_tensors(int64_t num_features, bool affine, bool track_running_stats) {
  BatchNormTensors tensors;
  if (affine) {
    tensors.weight = at::ones({num_features});
    tensors.bias = at::zeros({num_features});
  }
  if (track_running_stats) {
    tensors.running_mean = at::zeros({num_features});
    tensors.running_var = at::ones({num_features});
    tensors.num_batches_tracked = at::zeros({}, at::kLong);
  }
  return tensors;
}

at::Tensor batch_norm_in_evaluation(const at::Tensor& input, const BatchNormTensors& tensors, double eps) {
  check_input(input, tensors);
  return at::batch_norm(input, tensors.weight, tensors.bias, tensors.running_mean, tensors.running_var,
                        /*training=*/false, /*momentum=*/0, eps, /*cudnn_enabled=*/false);
}

at::Tensor batch_norm_in_training(const at::Tensor& input, const BatchNormTensors& tensors, double eps,
                                  std::optional<double> momentum) {
  check_input(input, tensors);
  const at::ScalarType type = accumulation_type_of(input.scalar_type());
  const at::Tensor wide = input.to(type);
  const Moments moments = moments_of_all(wide);
  if (moments.count == 1) {
    throw UsageError(
        "LS-BATCH",
        std::string("SyncBatchNorm was given one value for each channel over all replicas, which has no variance"),
        "choose a larger global batch, or drop the remainder");
  }
  const at::Tensor variance = moments.m2 / std::max(moments.count, 1.0);
  at::Tensor output =
      NormalizeFunction::apply(wide, moments.mean.to(type), (variance + eps).rsqrt().to(type), moments.count);
  if (tensors.running_mean.defined() && moments.count > 0) update_running_statistics(tensors, moments, momentum);
  if (tensors.weight.defined()) {
    output = at::addcmul(by_channel(tensors.bias, input.dim()), output, by_channel(tensors.weight, input.dim()));
  } else {
    output = output.clone();  // backward needs it, and the caller may write to the result, as torch::nn allows
  }
  return output.to(input.scalar_type());
}

}  // namespace lockstep::internal::layers
