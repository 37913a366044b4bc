// One step of a fit, as a program would write it with Strategy::run.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <utility>

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

namespace {

class TrainStep {
 public:
  TrainStep(const TrainerSetup& setup, const MetricList& metrics, bool checks_finite)
      : setup_(setup), metrics_(metrics), checks_finite_(checks_finite) {}

  PartCounts operator()(PartContext& ctx, std::span<const Batch> batches) const {
    PartCounts counts = metrics_.none();
    if (setup_.step) return own_step(ctx, batches.front(), std::move(counts));
    int64_t whole = 0;
    for (const Batch& part : batches) whole += part.global_size;
    for (const Batch& part : batches) forward_and_backward(ctx, part, whole, counts);
    check_loss(ctx, counts.loss);
    counts.gradient_norm =
        ctx.update(*setup_.optimizer, {.clip_global_norm = setup_.clip_global_norm, .check_finite = checks_finite_});
    return counts;
  }

 private:
  PartCounts own_step(PartContext& ctx, const Batch& part, PartCounts counts) const {
    std::optional<AutocastScope> autocast;
    if (setup_.precision == Precision::kBFloat16) autocast.emplace(ctx.device());
    const at::Tensor mean = ctx.own_step(setup_.step, part);
    autocast.reset();
    const bool counts_here = mean.defined() && part.samples() > 0;
    counts.loss = counts_here ? mean.detach().reshape({}).to(at::kDouble) *
                                    (static_cast<double>(part.samples()) / static_cast<double>(part.global_size))
                              : at::zeros({}, at::kDouble);
    if (checks_finite_ && !std::isfinite(counts.loss.item<double>())) {
      throw NonFiniteError(
          "LS-NOT-FINITE",
          fmt::format("step {}, replica {}: the loss is {}", ctx.step(), ctx.replica(), counts.loss.item<double>()),
          "lower the learning rate, or look at the samples of this step");
    }
    return counts;
  }

  void forward_and_backward(PartContext& ctx, const Batch& part, int64_t whole, PartCounts& counts) const {
    at::Tensor loss;
    at::Tensor output;
    {
      std::optional<AutocastScope> autocast;
      if (setup_.precision == Precision::kBFloat16) autocast.emplace(ctx.device());
      output = named("TrainerOptions::forward, or the model's", [&] { return ctx.forward(*setup_.model, part); });
      loss = loss_of(setup_, output, part);
    }
    loss = ctx.weighed(loss, part, whole);
    metrics_.count(counts, output, part);
    named("the backward pass of TrainerOptions::loss", [&] { loss.backward(); });
    loss = loss.variable_data();  // a detach() would be one more operator of the step
    if (loss.dim() > 0) loss = loss.reshape({});
    counts.loss = counts.loss.defined() ? counts.loss + loss : loss;
  }

  /// Whose gradient is not finite in this part: "'a' and 3 other variables", or an empty text.
  std::string not_finite_names(PartContext& ctx) const {
    std::string names;
    int64_t others = 0;
    for (const Variable& variable : setup_.model->variables) {
      if (!variable.trainable()) continue;
      const at::Tensor gradient = ctx.gradient_of(variable);
      if (!gradient.defined() || gradient.isfinite().all().item<bool>()) continue;
      if (names.empty()) {
        names = fmt::format("'{}'", variable.name());
      } else {
        ++others;
      }
    }
    return others > 0 ? fmt::format("{} and {}", names, counted(others, "other variable")) : names;
  }

  void check_loss(PartContext& ctx, const at::Tensor& loss) const {
    if (!checks_finite_ || std::isfinite(loss.item<double>())) return;
    const std::string names = not_finite_names(ctx);
    throw NonFiniteError(
        "LS-NOT-FINITE",
        fmt::format("step {}, replica {}: the loss is {}; the step was not applied{}", ctx.step(), ctx.replica(),
                    loss.item<double>(), names.empty() ? "" : "; the gradient is not finite either for " + names),
        "lower the learning rate, or look at the samples of this step");
  }

  const TrainerSetup& setup_;
  const MetricList& metrics_;
  const bool checks_finite_;
};

}  // namespace

PartFunction train_function(const TrainerSetup& setup, const MetricList& metrics, bool checks_finite) {
  return TrainStep(setup, metrics, checks_finite);
}

}  // namespace lockstep::internal::train
