// One step of a fit, as a program would write it with Strategy::run.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/train/autocast_scope.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::internal::inline train {

at::Tensor loss_of(const TrainerSetup& setup, const at::Tensor& output, const Batch& part) {
  at::Tensor loss = named("TrainerOptions::loss", [&] { return setup.loss(output, part); });
  if (loss.defined() && loss.numel() == 1) return loss;
  throw UsageError("LS-OPTION",
                   loss.defined() ? fmt::format("TrainerOptions::loss returned a tensor of the shape [{}]",
                                                fmt::join(loss.sizes().vec(), ", "))
                                  : "TrainerOptions::loss returned an undefined tensor",
                   "return one number, the mean loss of the part: in LibTorch's loss functions the reduction kMean");
}

template <class Weigh>
void TrainStep::forward_and_backward(const ReplicaContext& ctx, const Batch& part, PartCounts& counts,
                                     const Weigh& weighed) const {
  at::Tensor loss;
  at::Tensor output;
  {
    std::optional<AutocastScope> autocast;
    if (setup_.precision == Precision::kBFloat16) autocast.emplace(ctx.device().type());
    output = named("TrainerOptions::forward, or the model's", [&] { return setup_.model->forward(ctx, part); });
    loss = loss_of(setup_, output, part);
  }
  loss = weighed(loss);
  metrics_.count(counts, output, part);
  named("the backward pass of TrainerOptions::loss", [&] { loss.backward(); });
  loss = loss.variable_data();  // a detach() would be one more operator of the step
  if (loss.dim() > 0) loss = loss.reshape({});
  counts.loss = counts.loss.defined() ? counts.loss + loss : loss;
}

/// Whose gradient is not finite on this replica: "'a' and 3 other variables", or an empty text.
std::string TrainStep::not_finite_names(const ReplicaContext& ctx) const {
  std::string names;
  int64_t others = 0;
  for (const Variable& variable : setup_.model->variables) {
    if (!variable.trainable()) continue;
    const at::Tensor& gradient = variable.value(ctx).grad();
    if (!gradient.defined() || gradient.isfinite().all().item<bool>()) continue;
    if (names.empty()) {
      names = fmt::format("'{}'", variable.name());
    } else {
      ++others;
    }
  }
  return others > 0 ? fmt::format("{} and {}", names, counted(others, "other variable")) : names;
}

void TrainStep::check_loss(const ReplicaContext& ctx, const at::Tensor& loss) const {
  if (!checks_finite_ || std::isfinite(loss.item<double>())) return;
  const std::string names = not_finite_names(ctx);
  throw NonFiniteError("LS-NOT-FINITE",
                       fmt::format("step {}, replica {}: the loss is {}; the step was not applied{}", ctx.step(),
                                   ctx.replica_id().value(), loss.item<double>(),
                                   names.empty() ? "" : "; the gradient is not finite either for " + names),
                       "lower the learning rate, or look at the samples of this step");
}

void TrainStep::update(const ReplicaContext& ctx, PartCounts& counts, StepGradients& gradients) const {
  check_loss(ctx, counts.loss);
  gradients.keep(ctx);
  counts.gradient_norm =
      setup_.optimizer->step(ctx, {.clip_global_norm = setup_.clip_global_norm, .check_finite = checks_finite_})
          .global_norm;
}

PartCounts TrainStep::own_step(ReplicaContext& ctx, const Batch& part) const {
  PartCounts counts = metrics_.none();
  const at::Tensor mean = setup_.step(ctx, part);
  const bool counts_here = mean.defined() && part.samples() > 0;
  counts.loss = counts_here ? mean.detach().reshape({}).to(at::kDouble) *
                                  (static_cast<double>(part.samples()) / static_cast<double>(part.global_size))
                            : at::zeros({}, at::kDouble);
  if (checks_finite_ && !std::isfinite(counts.loss.item<double>())) {
    throw NonFiniteError("LS-NOT-FINITE",
                         fmt::format("step {}, replica {}: the loss is {}", ctx.step(), ctx.replica_id().value(),
                                     counts.loss.item<double>()),
                         "lower the learning rate, or look at the samples of this step");
  }
  return counts;
}

PerReplica<PartCounts> TrainStep::operator()(std::span<const PerReplica<Batch>> batches,
                                             StepGradients& gradients) const {
  if (batches.size() == 1) {
    return strategy_.run(batches.front(), [&](ReplicaContext& ctx, const Batch& part) {
      if (setup_.step) return own_step(ctx, part);
      PartCounts counts = metrics_.none();
      forward_and_backward(ctx, part, counts, [&](const at::Tensor& mean) { return ctx.scale_loss(mean); });
      update(ctx, counts, gradients);
      return counts;
    });
  }
  int64_t whole = 0;
  for (const PerReplica<Batch>& batch : batches) whole += batch.begin()->global_size;
  const auto parts = strategy_.per_replica([&](ReplicaId r) {
    std::vector<Batch> mine;
    for (const PerReplica<Batch>& batch : batches) mine.push_back(batch[r]);
    return mine;
  });
  return strategy_.run(parts, [&](ReplicaContext& ctx, const std::vector<Batch>& mine) {
    PartCounts counts = metrics_.none();
    for (const Batch& part : mine) {
      forward_and_backward(ctx, part, counts,
                           [&](const at::Tensor& mean) { return ctx.scale_loss(mean, part.samples(), whole); });
    }
    update(ctx, counts, gradients);
    return counts;
  });
}

}  // namespace lockstep::internal::train
