// Who runs the steps of a Trainer: the seam between its loops and strategies that have a way of their own to run steps.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"

namespace lockstep {

class Optimizer;
class ReplicaContext;
class Strategy;
class Variable;
struct StepOptions;
namespace data {
class DistributedDataset;
}

namespace internal::inline train {

class MetricList;
class PartsOfStep;
class RoundedUpdates;
struct PartCounts;
struct TrainedModel;
struct TrainerSetup;

/// What the Trainer's own code may do in a step, with one part of it: a replica's, or a worker's.
class PartContext {
 public:
  virtual at::Tensor forward(const TrainedModel& model, const Batch& part) = 0;
  /// The loss of one of the step's batches by its share of all: `whole` are the samples of all parts of all of them.
  virtual at::Tensor weighed(const at::Tensor& mean_loss, const Batch& part, int64_t whole) = 0;
  /// Of a variable of the model; undefined where it has none.
  virtual at::Tensor gradient_of(const Variable& variable) = 0;
  /// Lets the optimizer make its step with the gradients of all parts; gives their norm, or 0 where it is not known
  /// yet.
  virtual double update(const Optimizer& optimizer, const StepOptions& options) = 0;
  /// Calls TrainerOptions::step.
  virtual at::Tensor own_step(const std::function<at::Tensor(ReplicaContext&, const Batch&)>& step,
                              const Batch& part) = 0;
  virtual c10::DeviceType device() const = 0;
  virtual int64_t step() const = 0;
  virtual int64_t replica() const = 0;

 protected:
  ~PartContext() = default;
};

/// What is done with one part: of one batch, or of each of several that make one step.
using PartFunction = std::function<PartCounts(PartContext&, std::span<const Batch>)>;

/// Which function of a Trainer it is: a worker that is another process has a Trainer of its own, and calls that one's.
enum class PartKind : uint8_t { kTrain, kTrainFinite, kEvaluate, kPredict };
struct PartWork {
  PartKind kind = PartKind::kTrain;
  PartFunction call;
};

/// The function of this kind. What it is made of must outlive it.
PartWork part_work(PartKind kind, const TrainerSetup& setup, const MetricList& metrics);

/// What is looked at in a step beside its numbers. A runner that does not run the step within begin() leaves all out.
struct StepLook {
  const std::vector<Variable>* gradients_of = nullptr;  // for DoneStep::gradients
  PartsOfStep* parts = nullptr;                         // measures while the step runs
  RoundedUpdates* rounded = nullptr;                    // looks at weights and gradients of one replica
};

/// A step that was made, or that counts.
struct DoneStep {
  std::vector<PerReplica<Batch>> batches = {};
  int64_t samples = 0;
  PerReplica<PartCounts> parts;
  std::vector<std::pair<std::string, at::Tensor>> gradients = {};  // by the variables' names, summed over all parts
};

/// Used by one thread. What it is given must live until run() returns.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Calls `fn`, inside of which the others are called. Calls nest.
  virtual void run(FunctionRef<void()> fn) = 0;
  /// Whether this process is a task that serves another one, the chief: run() then returns when the chief's has, and
  /// calls nothing.
  virtual bool serves() const { return false; }
  /// While what it gives lives, variables and data sets that the program makes are this process's alone: callbacks make
  /// them, and these are not called on tasks that serve.
  virtual std::shared_ptr<void> own_scope() { return nullptr; }
  /// Calls `fn`, which adds up and gathers replicas' numbers.
  virtual void bring_together(FunctionRef<void()> fn) = 0;

  /// Hands out a step with the batches, which are of `data`; it runs at once, or until it is taken.
  virtual void begin(std::vector<PerReplica<Batch>> batches, const lockstep::data::DistributedDataset& data,
                     const PartWork& work, const StepLook& look) = 0;
  /// Whether another step may be handed out before one is taken.
  virtual bool has_room() const = 0;
  /// How many steps were handed out and not taken.
  virtual int64_t under_way() const = 0;
  /// Waits for the next step, in the order in which steps count. Throws what a step has thrown.
  virtual DoneStep take() = 0;
  /// Strategy::stop_requested(), as of the step that was taken last.
  virtual bool stop_requested() const = 0;
  /// Strategy::step(), as of now.
  virtual int64_t steps() const = 0;

  /// Looks at batches in evaluation mode until `next` gives null, and gives each one's counts to `take` in order.
  virtual void evaluate(FunctionRef<const PerReplica<Batch>*()> next, const PartWork& work,
                        FunctionRef<void(const PerReplica<Batch>&, const PerReplica<PartCounts>&)> take) = 0;
};

/// A strategy that runs the steps of a Trainer in its own way derives from this too.
class StepRunnerSource {
 public:
  /// A UsageError for a setup that it cannot run.
  virtual std::unique_ptr<StepRunner> make_step_runner(const TrainerSetup& setup, const MetricList& metrics) = 0;

 protected:
  ~StepRunnerSource() = default;
};

/// The strategy's own, or one that calls Strategy::run. What it is given outlives it.
std::unique_ptr<StepRunner> make_step_runner(Strategy& strategy, const TrainerSetup& setup, const MetricList& metrics);

}  // namespace internal::train
}  // namespace lockstep
