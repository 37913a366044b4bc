// Looks at a whole data set without training: the loss and the metrics over it, or the model's outputs.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/deal/epoch_look.h"
#include "lockstep/train/autocast_scope.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::internal::inline train {

namespace {

/// The output of one part, as a training step would compute it.
at::Tensor output_of(const TrainerSetup& setup, PartContext& ctx, const Batch& part,
                     std::optional<AutocastScope>& autocast) {
  if (setup.precision == Precision::kBFloat16) autocast.emplace(ctx.device());
  return named("TrainerOptions::forward, or the model's", [&] { return ctx.forward(*setup.model, part); });
}

/// Gives the batches of epoch 0, one after another, or the first one alone: an evaluation sees the same samples in the
/// same order, however far training has come, and leaves the place in the data as it is.
class Batches {
 public:
  Batches(const DistributedDataset& data, bool first_only) : look_(data, 0), first_only_(first_only) {}
  const PerReplica<Batch>* next() {
    const bool is_first = !std::exchange(is_begun_, true);
    return is_first || !first_only_ ? look_.next() : nullptr;
  }

 private:
  EpochLook look_;
  const bool first_only_;
  bool is_begun_ = false;
};

/// Lives as long as an evaluation: weights that autocast has cast without a graph are of no use to the next step.
class CastWeights {
 public:
  explicit CastWeights(const TrainerSetup& setup) : casts_(setup.precision == Precision::kBFloat16) {}
  ~CastWeights() {
    if (casts_) forget_autocast_weights();
  }
  CastWeights(const CastWeights&) = delete;
  CastWeights& operator=(const CastWeights&) = delete;

 private:
  const bool casts_;
};

/// What a tensor without rows has to look like, so that it can stand beside those with rows.
class OutputForm {
 public:
  /// A call of all workers: takes the form of the first replica that has rows.
  void learn(const Strategy& strategy, const PerReplica<PartCounts>& parts) {
    if (known_) return;
    const at::Tensor forms = strategy.gather(strategy.per_replica([&](ReplicaId r) {
      const at::Tensor& output = parts[r].output;
      if (!output.defined()) return at::empty({0, kNumbers}, at::kLong);
      at::Tensor form = at::zeros({1, kNumbers}, at::kLong);
      const auto number = internal::host_numbers_to_write<int64_t>(form);
      number[0] = static_cast<int64_t>(output.scalar_type());
      number[1] = output.dim();
      for (int64_t d = 1; d < std::min<int64_t>(output.dim(), kNumbers - 2); ++d) number[1 + d] = output.size(d);
      return form;
    }));
    if (forms.size(0) == 0) return;
    const auto number = internal::host_numbers<int64_t>(forms);
    type_ = static_cast<at::ScalarType>(number[0]);
    sizes_ = {0};
    for (int64_t d = 1; d < number[1]; ++d) sizes_.push_back(number[1 + d]);
    known_ = true;
  }
  bool is_known() const { return known_; }
  at::Tensor empty(c10::Device device) const { return at::empty(sizes_, at::TensorOptions(type_).device(device)); }

 private:
  static constexpr int64_t kNumbers = 16;
  bool known_ = false;
  at::ScalarType type_ = at::kFloat;
  std::vector<int64_t> sizes_;
};

}  // namespace

void require_forward(const TrainerSetup& setup, const char* call) {
  if (setup.model && setup.model->forward) return;
  throw UsageError("LS-OPTION",
                   fmt::format("{} needs the model's output, and the trainer {}", call,
                               setup.model ? "has a model without a forward(Tensor) that returns a Tensor"
                                           : "was made without a model"),
                   setup.model ? "give TrainerOptions a .forward" : "give the Trainer a model and a .loss");
}

void require_end(const DistributedDataset& data, const char* call) {
  const Deal& deal = deal_behind(data);
  if (!deal.is_endless()) return;
  throw UsageError("LS-STREAM", fmt::format("{} was given a stream without end: {}", call, deal.describe()),
                   "end it by take(n), or leave out its repeat()");
}

void require_numbers(const TrainerSetup& setup, const MetricList& metrics, const char* call) {
  require_forward(setup, call);
  if (setup.loss || !metrics.specs().empty()) return;
  throw UsageError("LS-OPTION",
                   fmt::format("{} has no number to give: the trainer has neither .loss nor .metrics", call),
                   "give TrainerOptions a .loss or .metrics, which evaluations use beside a .step");
}

PartFunction evaluate_function(const TrainerSetup& setup, const MetricList& metrics) {
  return [&setup, &metrics](PartContext& ctx, std::span<const Batch> parts) {
    const Batch& part = parts.front();
    PartCounts counts = metrics.none();
    if (part.samples() == 0) return counts;
    std::optional<AutocastScope> autocast;
    const at::Tensor output = output_of(setup, ctx, part, autocast);
    if (setup.loss) {
      counts.loss = loss_of(setup, output, part).detach().reshape({}).to(at::kCPU, at::kDouble) *
                    static_cast<double>(part.samples());
    }
    autocast.reset();
    metrics.count(counts, output, part);
    return counts;
  };
}

Totals evaluate(Strategy& strategy, StepRunner& runner, const TrainerSetup& setup, const MetricList& metrics,
                const DistributedDataset& data, const Look& look) {
  const at::NoGradGuard no_grad;
  const CastWeights cast_weights(setup);
  std::vector<PartCounts> sums;
  const auto all = strategy.per_replica([&](ReplicaId) {
    PartCounts none = metrics.none();
    none.loss = at::zeros({}, at::kDouble);
    return none;
  });
  sums.assign(all.begin(), all.end());
  int64_t samples = 0;
  Totals totals;
  runner.run([&] {
    Batches batches(data, look.first_batch_only);
    runner.evaluate([&] { return batches.next(); }, part_work(PartKind::kEvaluate, setup, metrics),
                    [&](const PerReplica<Batch>& batch, const PerReplica<PartCounts>& parts) {
                      std::size_t r = 0;
                      for (const PartCounts& part : parts) MetricList::add_part(sums[r++], part);
                      samples += batch.begin()->global_size;
                    });
    runner.bring_together([&] {
      totals =
          metrics.bring_together(strategy, {PerReplica<PartCounts>(std::move(sums), all.first_replica())}, {1}).front();
    });
  });
  totals.samples = samples;
  if (samples == 0 && strategy.is_chief()) {
    log(LogLevel::kWarning,
        fmt::format("an evaluation had no samples, so that its numbers say nothing: {}", deal_behind(data).describe()));
  }
  return totals;
}

PartFunction predict_function(const TrainerSetup& setup) {
  return [&setup](PartContext& ctx, std::span<const Batch> parts) -> PartCounts {
    const Batch& part = parts.front();
    if (part.samples() == 0) return {};
    std::optional<AutocastScope> autocast;
    const at::Tensor output = output_of(setup, ctx, part, autocast);
    if (output.dim() == 0 || output.size(0) != part.size()) {
      throw UsageError("LS-OUTPUT-ROWS",
                       fmt::format("replica {}: an output of {} elements in {} dimensions was computed for {} "
                                   "samples, and predict() needs a row for each",
                                   ctx.replica(), output.numel(), output.dim(), part.size()),
                       "let the model, or .forward, give a tensor of which dimension 0 is the samples");
    }
    return {.output = output.detach().narrow(0, 0, part.samples())};
  };
}

at::Tensor predict(Strategy& strategy, StepRunner& runner, const TrainerSetup& setup, const MetricList& metrics,
                   const DistributedDataset& data) {
  require_forward(setup, "Trainer::predict");
  require_end(data, "Trainer::predict");
  const at::NoGradGuard no_grad;
  const CastWeights cast_weights(setup);
  OutputForm form;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> ids;
  const auto take = [&](const PerReplica<Batch>& batch, const PerReplica<PartCounts>& parts) {
    form.learn(strategy, parts);
    if (!form.is_known()) return;  // no replica of any worker had a sample
    outputs.push_back(strategy.gather(strategy.per_replica([&](ReplicaId r) {
      const at::Tensor& output = parts[r].output;
      return output.defined() ? output : form.empty(batch[r].input.device());
    })));
    ids.push_back(strategy.gather(strategy.per_replica([&](ReplicaId r) {
      const Batch& part = batch[r];
      return part.samples() == 0 ? at::empty({0}, at::kLong) : part.ids.narrow(0, 0, part.samples()).to(at::kCPU);
    })));
  };
  runner.run([&] {
    Batches batches(data, false);
    runner.evaluate([&] { return batches.next(); }, part_work(PartKind::kPredict, setup, metrics),
                    [&](const PerReplica<Batch>& batch, const PerReplica<PartCounts>& parts) {
                      runner.bring_together([&] { take(batch, parts); });
                    });
  });
  if (outputs.empty()) return {};
  const at::Tensor order = std::get<1>(at::cat(ids).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor all = at::cat(outputs);
  return all.index_select(0, order.to(all.device()));
}

}  // namespace lockstep::internal::train
