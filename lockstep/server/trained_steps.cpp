#include "lockstep/server/trained_steps.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/call_gate.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/server/coordinator_state.h"
#include "lockstep/server/local/evaluation.h"
#include "lockstep/server/local/worker_task.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/remote/batch_bytes.h"
#include "lockstep/server/remote/tensor_bytes.h"
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

PartCounts evaluated(const PartFunction& fn, WorkerContext& context, const Batch& part) {
  WorkerPart here(context, context.task().current()->part);
  return fn(here, std::span(&part, 1));
}

/// What has to be equal on all tasks: workers compute by their own Trainer's options.
std::string text_of(const TrainerSetup& setup, const MetricList& metrics) {
  return fmt::format(".clip_global_norm = {}, .accumulate = {}, .precision = {}, logs {}",
                     setup.clip_global_norm ? fmt::format("{}", *setup.clip_global_norm) : "none", setup.accumulate,
                     setup.precision == Precision::kBFloat16 ? "bfloat16" : "float32",
                     fmt::join(metrics.names(static_cast<bool>(setup.loss)), ", "));
}

constexpr std::array kKinds{std::pair(PartKind::kTrain, "train"), std::pair(PartKind::kTrainFinite, "train, finite"),
                            std::pair(PartKind::kEvaluate, "evaluate"), std::pair(PartKind::kPredict, "predict")};

StepValue sent(const std::vector<Batch>& batches) {
  std::string bytes;
  ByteWriter(bytes).put(uint64_t{batches.size()});
  for (const Batch& one : batches) put(bytes, one);
  return bytes;
}

StepValue sent(const PartResult& tensors) {
  std::string bytes;
  ByteWriter(bytes).put(uint64_t{tensors.size()});
  for (const at::Tensor& one : tensors) put(bytes, one);
  return bytes;
}

/// What sent() gave, each part of which `get` reads.
template <class T, class Get>
std::vector<T> received(const StepValue& value, const char* what, const Get& get) {
  const auto* const bytes = std::get_if<std::string>(&value);
  if (bytes == nullptr) throw_other_step_value();
  MessageReader from(*bytes, -1, what);
  std::vector<T> all;
  for (std::size_t left = from.get_count(1); left > 0; --left) all.push_back(get(from));
  from.expect_end();
  return all;
}

}  // namespace

class TrainedSteps::Runner final : public StepRunner {
 public:
  Runner(ParameterServerStrategy& strategy, const TrainerSetup& setup, const MetricList& metrics)
      : strategy_(strategy), works_(std::make_shared<std::vector<PartWork>>()) {
    if (!strategy.has_processes()) return;
    for (const auto& [kind, name] : kKinds) works_->push_back(part_work(kind, setup, metrics));
    first_kind_ = name_steps(strategy, works_, text_of(setup, metrics));
  }

  bool serves() const override { return strategy_.has_processes() && strategy_.options_.cluster->job != "chief"; }

  std::shared_ptr<void> own_scope() override {
    return strategy_.has_processes() ? strategy_.state_->own->scope() : nullptr;
  }

  void run(FunctionRef<void()> fn) override {
    if (run_ != nullptr) return fn();
    const int code = strategy_.coordinate([&](Coordinator& coordinator) {
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
    if (code == 0) return;
    throw PeerError("LS-PEER", "the chief's Trainer has thrown, and this task served it",
                    "look at the chief's message");
  }

  void bring_together(FunctionRef<void()> fn) override {
    // Numbers of steps are at hand: the chief of processes need not ask servers for all that has changed.
    std::optional<CallerScope> as_task;
    if (run_ != nullptr && run_->has_processes()) as_task.emplace(Caller::kTask);
    // Calls of replicas that come together are refused to the program, and not to whoever has the gate.
    const GateHold hold(run_ == nullptr ? nullptr : run_->gate(), "Variable::read");
    fn();
  }

  void begin(std::vector<PerReplica<Batch>> batches, const DistributedDataset& data, const PartWork& work,
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
      if (run_->has_processes()) {
        call.inputs = {sent(mine), r};
      } else {
        call.call = [mine = std::move(mine), r, fn = work.call](WorkerContext& context) -> Payload {
          for (const Batch& one : mine) context.note_batch(one);
          WorkerPart here(context, r);
          return std::make_shared<PartCounts>(fn(here, mine));
        };
      }
      handed.parts.push_back(schedule_call(*run_, number_of(work.kind), std::move(call), bytes, {}));
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
    for (const auto& part : at->parts) {
      const Payload result = run_->chief().result_of(*part);
      if (!run_->has_processes()) {
        parts.push_back(as<PartCounts>(result));
      } else {
        if (!result) throw_other_step_value();
        parts.push_back(counts_of(received<at::Tensor>(as<StepValue>(result), "what a step has counted", get_tensor)));
      }
    }
    DoneStep done{
        .batches = std::move(at->batches), .samples = at->samples, .parts = PerReplica<PartCounts>(std::move(parts))};
    const DistributedDataset data = at->data;
    steps_.erase(at);
    if (steps_.empty()) data.used();  // no run of the strategy tells that
    bring_together([&] { is_stop_requested_ = strategy_.stop_requested(); });
    return done;
  }
  bool stop_requested() const override { return is_stop_requested_; }
  int64_t steps() const override {
    const bool is_behind = run_ != nullptr && run_->has_processes();  // the chief's copy
    if (!is_behind) return strategy_.step();
    return run_->chief().steps() / (run_->in_rounds() ? run_->workers() : 1);
  }

  void evaluate(FunctionRef<const PerReplica<Batch>*()> next, const PartWork& work,
                FunctionRef<void(const PerReplica<Batch>&, const PerReplica<PartCounts>&)> take) override {
    const auto call = [&fn = work.call](WorkerContext& context, const Batch& part) {
      return tensors_of(evaluated(fn, context, part));
    };
    evaluate_on_workers(*run_, number_of(work.kind), next, call,
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

  uint32_t number_of(PartKind kind) const {
    return run_->has_processes() ? first_kind_ + static_cast<uint32_t>(kind) : kTrainerStep;
  }

  ParameterServerStrategy& strategy_;
  const std::shared_ptr<std::vector<PartWork>> works_;  // by kind, where tasks are processes
  uint32_t first_kind_ = 0;
  CoordinatedRun* run_ = nullptr;  // inside run()
  std::deque<Handed> steps_;       // that are under way
  bool is_stop_requested_ = false;
};

uint32_t TrainedSteps::name_steps(ParameterServerStrategy& strategy,
                                  const std::shared_ptr<std::vector<PartWork>>& works, std::string options) {
  const auto first = static_cast<uint32_t>(strategy.state_->steps.size());
  const std::size_t number = strategy.state_->trainers.size();
  strategy.state_->trainers.push_back(std::move(options));
  for (const auto& [kind, name] : kKinds) {
    // The Trainer may go before the strategy.
    const auto function = [weak = std::weak_ptr(works), index = static_cast<std::size_t>(kind)] {
      const auto all = weak.lock();
      if (!all) throw_other_step_value();
      return (*all)[index].call;
    };
    NamedStep step{fmt::format("{} of Trainer {}", name, number), {}};
    if (kind == PartKind::kEvaluate || kind == PartKind::kPredict) {
      step.evaluate = [function](WorkerContext& context, const Batch& part) {
        return tensors_of(evaluated(function(), context, part));
      };
      step.call = [](WorkerContext&, const StepValues&) -> Payload { throw_other_step_value(); };
    } else {
      step.call = [function](WorkerContext& context, const StepValues& values) -> Payload {
        if (values.size() != 2) throw_other_step_value();
        WorkerPart here(context, from_step_value<int64_t>(values[1]));
        const PartCounts counts = function()(here, received<Batch>(values[0], "batches of a step", get_batch));
        return std::make_shared<StepValue>(sent(tensors_of(counts)));
      };
    }
    strategy.name_step(std::move(step));
  }
  return first;
}

std::unique_ptr<StepRunner> TrainedSteps::make(ParameterServerStrategy& strategy, const TrainerSetup& setup,
                                               const MetricList& metrics) {
  if (setup.step) {
    throw UsageError("LS-OPTION",
                     "TrainerOptions has a .step, which is called by replicas, and a ParameterServerStrategy was given",
                     "give a .loss and a .forward, or schedule a step of your own: strategy.step(name, fn)");
  }
  return std::make_unique<Runner>(strategy, setup, metrics);
}

}  // namespace lockstep::internal::server
