#include "lockstep/server/trained_steps.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/replica/call_gate.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/server/local/evaluation.h"
#include "lockstep/server/local/worker_task.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/train/totals.h"
#include "lockstep/train/trainer.h"

namespace lockstep::internal::inline server {

namespace {

/// The code of the Trainer in a scheduled step, or in a part of an evaluation.
class WorkerPart final : public PartContext {
 public:
  WorkerPart(WorkerContext& ctx, int64_t replica) : ctx_(ctx), replica_(replica) {}

  at::Tensor forward(const TrainedModel& model, const Batch& part) override {
    return model.forward_on_worker(ctx_, part);
  }
  at::Tensor weighed(const at::Tensor& mean_loss, const Batch& part, int64_t whole) override {
    if (whole > 0 && part.samples() == whole) return mean_loss;
    const double share = whole == 0 ? 0 : static_cast<double>(part.samples()) / static_cast<double>(whole);
    return share == 0 ? zero_that_keeps_graph(mean_loss) : weighted_loss(mean_loss, share);
  }
  at::Tensor gradient_of(const Variable& variable) override { return variable.value(ctx_).grad(); }
  double update(const Optimizer& /*all of the strategy's step*/, const StepOptions& options) override {
    StepOptions weighed = options;
    weighed.loss_scaled_by_hand = true;
    ctx_.push(weighed);
    return 0;
  }
  at::Tensor own_step(const std::function<at::Tensor(ReplicaContext&, const Batch&)>& /*step*/,
                      const Batch& /*part*/) override {
    throw InternalError("LS-INTERNAL", "a TrainerOptions::step was called by a worker", "please report it");
  }
  c10::DeviceType device() const override { return c10::DeviceType::CPU; }
  int64_t step() const override { return ctx_.step(); }
  int64_t replica() const override { return replica_; }

 private:
  WorkerContext& ctx_;
  const int64_t replica_;
};

uint64_t bytes_of(const Batch& batch) {
  uint64_t all = bytes_of_argument(batch.input) + bytes_of_argument(batch.target) + bytes_of_argument(batch.ids);
  for (const auto& [name, tensor] : batch.more) all += bytes_of_argument(tensor);
  return all;
}

PartResult tensors_of(PartCounts counts) {
  PartResult all{std::move(counts.loss), std::move(counts.sums), std::move(counts.output),
                 tensor_of(counts.gradient_norm)};
  for (at::Tensor& one : counts.rows) all.push_back(std::move(one));
  return all;
}

PartCounts counts_of(const PartResult& all) {
  constexpr std::size_t kFirstRows = 4;
  const bool is_sound = all.size() >= kFirstRows && all[3].defined() && all[3].dim() == 0;
  if (!is_sound) throw_other_step_value();
  return {.loss = all[0],
          .sums = all[1],
          .rows = {all.begin() + kFirstRows, all.end()},
          .gradient_norm = all[3].item<double>(),
          .output = all[2]};
}

}  // namespace

class TrainedSteps::Runner final : public StepRunner {
 public:
  explicit Runner(ParameterServerStrategy& strategy) : strategy_(strategy) {}

  void run(FunctionRef<void()> fn) override {
    if (run_ != nullptr) return fn();
    strategy_.coordinate([&](Coordinator& coordinator) {
      run_ = &coordinator.run_;
      struct Ended {
        Runner& runner;
        ~Ended() {
          runner.run_ = nullptr;
          runner.steps_.clear();
        }
      } const ended{*this};
      fn();
    });
  }

  void bring_together(FunctionRef<void()> fn) override {
    // Calls of replicas that come together are refused to the program, and not to whoever has the gate.
    const GateHold hold(run_ == nullptr ? nullptr : run_->gate(), "Variable::read");
    fn();
  }

  void begin(std::vector<PerReplica<Batch>> batches, const DistributedDataset& data, const PartFunction& fn,
             const StepLook& /*workers have the gradients, and the time*/) override {
    Handed handed{.data = data};
    for (const PerReplica<Batch>& batch : batches) handed.samples += batch.begin()->global_size;
    for (int64_t r = 0; r < static_cast<int64_t>(batches.front().size()); ++r) {
      std::vector<Batch> mine;
      uint64_t bytes = 0;
      for (const PerReplica<Batch>& batch : batches) {
        mine.push_back(batch[r]);
        bytes += bytes_of(mine.back());
      }
      StepCall call;
      call.call = [mine = std::move(mine), r, fn](WorkerContext& context) -> Payload {
        for (const Batch& one : mine) context.note_batch(one);
        WorkerPart here(context, r);
        return std::make_shared<PartCounts>(fn(here, mine));
      };
      handed.parts.push_back(schedule_call(*run_, kTrainerStep, std::move(call), bytes, {}));
    }
    handed.batches = std::move(batches);
    steps_.push_back(std::move(handed));
  }

  bool has_room() const override {
    return static_cast<int64_t>(steps_.size()) < (run_->in_rounds() ? 1 : 2 * run_->workers());
  }
  int64_t under_way() const override { return static_cast<int64_t>(steps_.size()); }

  DoneStep take() override {
    std::size_t first = 0;
    if (!run_->in_rounds()) {
      std::deque<std::shared_ptr<ScheduledStep>> all;
      for (const Handed& one : steps_) all.push_back(one.parts.front());
      first = run_->chief().first_of(all);
    }
    const auto at = steps_.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<PartCounts> parts;
    for (const auto& part : at->parts) parts.push_back(as<PartCounts>(run_->chief().result_of(*part)));
    DoneStep done{
        .batches = std::move(at->batches), .samples = at->samples, .parts = PerReplica<PartCounts>(std::move(parts))};
    const DistributedDataset data = at->data;
    steps_.erase(at);
    if (steps_.empty()) data.used();  // no run of the strategy tells that
    bring_together([&] { is_stop_requested_ = strategy_.stop_requested(); });
    return done;
  }
  bool stop_requested() const override { return is_stop_requested_; }

  void evaluate(FunctionRef<const PerReplica<Batch>*()> next, const PartFunction& fn,
                FunctionRef<void(const PerReplica<Batch>&, const PerReplica<PartCounts>&)> take) override {
    const auto call = [&fn](WorkerContext& context, const Batch& part) {
      WorkerPart here(context, context.task().current()->part);
      return tensors_of(fn(here, std::span(&part, 1)));
    };
    evaluate_on_workers(*run_, std::nullopt, next, call,
                        [&](const PerReplica<Batch>& batch, const std::vector<PartResult>& results) {
                          std::vector<PartCounts> parts;
                          for (const PartResult& one : results) parts.push_back(counts_of(one));
                          take(batch, PerReplica<PartCounts>(std::move(parts)));
                        });
  }

 private:
  struct Handed {
    DistributedDataset data;
    std::vector<PerReplica<Batch>> batches = {};
    int64_t samples = 0;
    std::vector<std::shared_ptr<ScheduledStep>> parts = {};
  };

  ParameterServerStrategy& strategy_;
  CoordinatedRun* run_ = nullptr;  // inside run()
  std::deque<Handed> steps_;       // that are under way
  bool is_stop_requested_ = false;
};

std::unique_ptr<StepRunner> TrainedSteps::make(ParameterServerStrategy& strategy, const TrainerSetup& setup) {
  if (setup.step) {
    throw UsageError("LS-OPTION",
                     "TrainerOptions has a .step, which is called by replicas, and a ParameterServerStrategy was given",
                     "give a .loss and a .forward, or schedule a step of your own: strategy.step(name, fn)");
  }
  if (strategy.has_processes()) {
    throw UsageError(
        "LS-EVALUATE",
        "a Trainer was given a ParameterServerStrategy whose tasks are processes, which cannot train so yet",
        "schedule steps: strategy.step(name, fn), or let threads be the tasks");
  }
  return std::make_unique<Runner>(strategy);
}

}  // namespace lockstep::internal::server
