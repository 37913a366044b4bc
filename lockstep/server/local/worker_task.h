// A worker of a run: its loop, its modules, and the step that it runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/data/stream.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/push_parts.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/step_clock.h"
#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/local/step_under_way.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/stream_places.h"
#include "lockstep/server/local/worker_modules.h"
#include "lockstep/server/protocol/worker_machine.h"
#include "lockstep/server/worker_context.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// A step's function, whatever its arguments and its result are.
using StepFunction = std::function<Payload(WorkerContext&, const Payload& arguments)>;

/// What all workers of a run share. It outlives them.
struct WorkersShared {
  Strategy& strategy;
  std::function<StepFunction(uint32_t kind)> function;
  std::function<void(const ToServer&)> to_server;
  std::function<void(const ChiefMessage&)> to_chief;
  std::function<void(const ChiefMessage&)> to_evaluation;        // to the chief of evaluations
  std::function<EvaluateFunction(uint32_t kind)> evaluate = {};  // of parts that have no function of their own
  ScheduledBatches& batches;
  StreamPlaces& places;
  const StrategyGate* gate = nullptr;  // the strategy's, by which its tables are known
  int64_t workers = 1;
  bool in_rounds = false;
  ValuesPlacement placement = {};
  uint64_t epoch = 1;
  bool digests = false;           // reports have digests, for a record
  bool rounds_gradients = false;  // to bfloat16, those of float32
  std::mutex factories = {};      // one thread at a time is in functions of the program that make modules and streams
};

class WorkerTask {
 public:
  WorkerTask(WorkersShared& shared, int32_t worker, uint32_t incarnation = 1);
  ~WorkerTask();
  /// Ends the thread, when the step's function that runs has ended.
  void stop();
  WorkerTask(const WorkerTask&) = delete;
  WorkerTask& operator=(const WorkerTask&) = delete;

  void put(const WorkerMessage& message);
  /// A message of the chief of evaluations.
  void put_of_evaluation(const WorkerMessage& message) { mail_.put({message, true}); }

  // For WorkerContext, on the task's thread.
  WorkersShared& shared() const { return shared_; }
  int32_t index() const { return worker_; }
  RandomStream& stream() { return stream_; }
  void* module_of(StepUnderWay& step, const std::shared_ptr<ModuleBinding>& binding,
                  FunctionRef<WorkerValues::MadeModule()> make);
  at::Tensor value_of(StepUnderWay& step, const Variable& variable);
  at::Tensor rows_of(StepUnderWay& step, const std::shared_ptr<TableState>& table, const at::Tensor& ids);
  /// Whether a module that the step has used has the variable.
  bool has_in_module(const StepUnderWay& step, const Variable& variable) const {
    return modules_.value_of(step, variable.state()).defined();
  }
  void push(StepUnderWay& step, const StepOptions& options);
  /// The worker's reader of a stream that distribute_to_workers has made, by the stream's number.
  lockstep::data::StreamReader& reader_of(int64_t stream, FunctionRef<lockstep::data::Stream()> make);
  const StepUnderWay* current() const { return current_; }

  /// The step whose function runs now. Any thread.
  std::optional<RunningStep> running() const;
  /// Its thread. Any thread, until stop().
  pthread_t handle() { return thread_.native_handle(); }

 private:
  struct Mail {
    WorkerMessage message;
    bool is_of_evaluation = false;
  };

  void run();
  void take(const Mail& mail);
  void carry(WorkerOutput& out);
  void run_step(const StepBegins& begins);
  void evaluate_part(const StepBegins& begins);
  /// Calls `fn` as the function of the step, and says how it ended; nothing where the run ends meanwhile.
  std::optional<StepEnd> end_of(StepUnderWay& step, const StreamKey& key,
                                FunctionRef<void(WorkerContext&, StepEnd&)> fn);
  WorkerMachine& machine_of(const StepUnderWay& step) { return step.evaluation ? evaluation_machine_ : machine_; }
  /// Adds a finding where a step that did not push has gradients.
  void report_gradients_left(const StepUnderWay& step);
  /// Adds a finding where a part of a round pushes gradients of a loss that never had the part's share.
  void report_unscaled(const StepUnderWay& step, const StepPush& push);
  /// The values that are wanted, in their order. `old` gives what the worker has of a variable that is wanted, where
  /// only some servers send what they have of it.
  std::vector<PulledValue> pull(const StepUnderWay& step, Wanted wanted, FunctionRef<at::Tensor(std::size_t)> old);
  /// What several servers cannot decide each by itself: by what gradients are clipped, and whether they are skipped.
  void decide_for_servers(StepUnderWay& step, StepPush& push);

  WorkersShared& shared_;
  const int32_t worker_;
  WorkerMachine machine_;
  WorkerMachine evaluation_machine_;  // has the parts of evaluations
  Mailbox<Mail> mail_;
  // Used by the task's thread alone:
  std::deque<StepBegins> begins_;
  std::map<uint32_t, Payload> answers_;  // by the number of the pull
  WorkerModules modules_;
  std::map<int64_t, std::unique_ptr<lockstep::data::StreamReader>> readers_;
  RandomStream stream_;
  const StepUnderWay* current_ = nullptr;
  mutable std::mutex running_mutex_;
  std::optional<RunningStep> running_;  // guarded by running_mutex_
  std::thread thread_;
};

}  // namespace lockstep::internal::server
