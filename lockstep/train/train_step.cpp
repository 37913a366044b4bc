// One step of a fit, as a program would write it with Strategy::run.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/autocast_scope.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::internal::inline train {

template <class Weigh>
void TrainStep::forward_and_backward(const ReplicaContext& ctx, const Batch& part, PartCounts& counts,
                                     const Weigh& weighed) const {
  at::Tensor loss;
  at::Tensor output;
  {
    std::optional<AutocastScope> autocast;
    if (setup_.precision == Precision::kBFloat16) autocast.emplace(ctx.device().type());
    output = setup_.model->forward(ctx, part);
    loss = setup_.loss(output, part);
  }
  loss = weighed(loss);
  metrics_.count(counts, output, part);
  loss.backward();
  loss = loss.detach().reshape({});
  counts.loss = counts.loss.defined() ? counts.loss + loss : loss;
}

void TrainStep::check_loss(const ReplicaContext& ctx, const at::Tensor& loss) const {
  if (!checks_finite_ || std::isfinite(loss.item<double>())) return;
  // Gradients that are not finite say more: which variables have them. The optimizer's step names these.
  if (setup_.model) {
    for (const Variable& variable : setup_.model->variables) {
      if (!variable.trainable()) continue;
      const at::Tensor& gradient = variable.value(ctx).grad();
      if (gradient.defined() && !gradient.isfinite().all().item<bool>()) return;
    }
  }
  throw NonFiniteError("LS-NOT-FINITE",
                       fmt::format("step {}, replica {}: the loss is {}; the step was not applied", ctx.step(),
                                   ctx.replica_id().value(), loss.item<double>()),
                       "lower the learning rate, or look at the samples of this step");
}

void TrainStep::update(const ReplicaContext& ctx, PartCounts& counts) const {
  check_loss(ctx, counts.loss);
  counts.gradient_norm =
      setup_.optimizer->step(ctx, {.clip_global_norm = setup_.clip_global_norm, .check_finite = checks_finite_})
          .global_norm;
}

PerReplica<PartCounts> TrainStep::operator()(const PerReplica<Batch>& batch) const {
  return strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
    PartCounts counts = metrics_.none();
    if (setup_.step) {
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
    forward_and_backward(ctx, part, counts, [&](const at::Tensor& mean) { return ctx.scale_loss(mean); });
    update(ctx, counts);
    return counts;
  });
}

PerReplica<PartCounts> TrainStep::operator()(const std::vector<PerReplica<Batch>>& batches) const {
  if (batches.size() == 1) return (*this)(batches.front());
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
    update(ctx, counts);
    return counts;
  });
}

}  // namespace lockstep::internal::train
