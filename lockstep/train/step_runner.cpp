#include "lockstep/train/step_runner.h"

#include <optional>
#include <utility>

#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/step/parts_of_step.h"
#include "lockstep/train/step/rounded_updates.h"
#include "lockstep/train/step/step_gradients.h"
#include "lockstep/train/totals.h"
#include "lockstep/train/trainer.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::internal::inline train {

namespace {

class ReplicaPart final : public PartContext {
 public:
  ReplicaPart(ReplicaContext& ctx, bool is_only_batch, StepGradients* gradients, RoundedUpdates* rounded)
      : ctx_(ctx), is_only_batch_(is_only_batch), gradients_(gradients), rounded_(rounded) {}

  at::Tensor forward(const TrainedModel& model, const Batch& part) override { return model.forward(ctx_, part); }
  at::Tensor weighed(const at::Tensor& mean_loss, const Batch& part, int64_t whole) override {
    return is_only_batch_ ? ctx_.scale_loss(mean_loss) : ctx_.scale_loss(mean_loss, part.samples(), whole);
  }
  at::Tensor gradient_of(const Variable& variable) override { return variable.value(ctx_).grad(); }
  double update(const Optimizer& optimizer, const StepOptions& options) override {
    if (gradients_ != nullptr) gradients_->keep(ctx_);
    if (rounded_ != nullptr && ctx_.replica_id().value() == 0) rounded_->look(ctx_);
    return optimizer.step(ctx_, options).global_norm;
  }
  at::Tensor own_step(const std::function<at::Tensor(ReplicaContext&, const Batch&)>& step,
                      const Batch& part) override {
    return step(ctx_, part);
  }
  c10::DeviceType device() const override { return ctx_.device().type(); }
  int64_t step() const override { return ctx_.step(); }
  int64_t replica() const override { return ctx_.replica_id().value(); }

 private:
  ReplicaContext& ctx_;
  const bool is_only_batch_;
  StepGradients* const gradients_;  // null: nobody wants them
  RoundedUpdates* const rounded_;   // the same
};

/// Runs each step by Strategy::run, when it is handed out.
class ReplicaRunner final : public StepRunner {
 public:
  explicit ReplicaRunner(Strategy& strategy) : strategy_(strategy) {}

  void run(FunctionRef<void()> fn) override { fn(); }
  void bring_together(FunctionRef<void()> fn) override { fn(); }

  void begin(std::vector<PerReplica<Batch>> batches, const lockstep::data::DistributedDataset& /*data*/,
             const PartWork& work, const StepLook& look) override {
    std::optional<StepGradients> gradients;
    if (look.gradients_of != nullptr) gradients.emplace(strategy_, *look.gradients_of);
    StepGradients* const kept = gradients ? &*gradients : nullptr;
    DoneStep done;
    if (look.parts != nullptr) look.parts->begin();
    for (const PerReplica<Batch>& batch : batches) done.samples += batch.begin()->global_size;
    if (batches.size() == 1) {
      done.parts = strategy_.run(batches.front(), [&](ReplicaContext& ctx, const Batch& part) {
        ReplicaPart here(ctx, true, kept, look.rounded);
        return work.call(here, std::span(&part, 1));
      });
    } else {
      const auto parts = strategy_.per_replica([&](ReplicaId r) {
        std::vector<Batch> mine;
        for (const PerReplica<Batch>& batch : batches) mine.push_back(batch[r]);
        return mine;
      });
      done.parts = strategy_.run(parts, [&](ReplicaContext& ctx, const std::vector<Batch>& mine) {
        ReplicaPart here(ctx, false, kept, look.rounded);
        return work.call(here, mine);
      });
    }
    if (look.parts != nullptr) look.parts->end();
    if (gradients) done.gradients = gradients->sums();
    done.batches = std::move(batches);
    done_ = std::move(done);
  }
  bool has_room() const override { return !done_; }
  int64_t under_way() const override { return done_ ? 1 : 0; }
  DoneStep take() override { return *std::exchange(done_, std::nullopt); }
  bool stop_requested() const override { return strategy_.stop_requested(); }
  int64_t steps() const override { return strategy_.step(); }

  void evaluate(FunctionRef<const PerReplica<Batch>*()> next, const PartWork& work,
                FunctionRef<void(const PerReplica<Batch>&, const PerReplica<PartCounts>&)> take) override {
    while (const PerReplica<Batch>* const batch = next()) {
      take(*batch, strategy_.evaluate(*batch, [&](ReplicaContext& ctx, const Batch& part) {
        ReplicaPart here(ctx, true, nullptr, nullptr);
        return work.call(here, std::span(&part, 1));
      }));
    }
  }

 private:
  Strategy& strategy_;
  std::optional<DoneStep> done_;
};

}  // namespace

PartWork part_work(PartKind kind, const TrainerSetup& setup, const MetricList& metrics) {
  switch (kind) {
    case PartKind::kTrain: return {kind, train_function(setup, metrics, /*checks_finite=*/false)};
    case PartKind::kTrainFinite: return {kind, train_function(setup, metrics, /*checks_finite=*/true)};
    case PartKind::kEvaluate: return {kind, evaluate_function(setup, metrics)};
    case PartKind::kPredict: return {kind, predict_function(setup)};
  }
  return {};
}

std::unique_ptr<StepRunner> make_step_runner(Strategy& strategy, const TrainerSetup& setup, const MetricList& metrics) {
  if (auto* const own = dynamic_cast<StepRunnerSource*>(&strategy)) return own->make_step_runner(setup, metrics);
  return std::make_unique<ReplicaRunner>(strategy);
}

}  // namespace lockstep::internal::train
