// A run of parameter servers whose tasks are threads of this process: what stands behind a Coordinator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/step_clock.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/values_store.h"
#include "lockstep/server/local/worker_task.h"

namespace lockstep::internal::inline server {

/// A run that is to be repeated, and how far.
struct ReplayedRun {
  const RunEvents& run;
  std::vector<std::string> functions = {};  // the names of steps
  std::optional<int64_t> until = std::nullopt;
};

/// What a run does beside its steps.
struct RunOptions {
  std::shared_ptr<RecordFile> record = nullptr;  // it is recorded
  const ReplayedRun* replay = nullptr;           // it repeats what that has
  bool rounds_gradients = false;                 // to bfloat16, those of float32
  std::chrono::milliseconds step_limit = {};     // who runs longer has its step given to another worker; 0: no limit
};

/// Owns the threads: one for each worker, one that serves the values, and where steps have a limit, one that watches
/// it. They live as long as it.
class LocalRun {
 public:
  LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options, const ChiefCut& begin,
           const RunOptions& more = {});
  /// Ends the threads, when the functions that still run have ended.
  ~LocalRun();
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  ChiefTask& chief() { return *chief_; }
  /// Waits until the server has applied all that the chief has decided so far.
  void catch_up();
  /// All batches that decided steps have taken were used.
  void settle_batches();

 private:
  void wait_until_read(Position end);
  StepClock::Watched watched();
  void serve();
  /// Ends the threads.
  void stop();
  void carry(ServerOutput& out);

  const std::shared_ptr<StrategyGate> gate_;
  const int64_t parts_;  // steps of a round; 1 without rounds
  ScheduledBatches batches_;
  std::shared_ptr<ChiefTask> chief_;
  ValuesStore store_;
  std::mutex read_mutex_;
  std::condition_variable has_read_;
  Position read_;          // what the server has applied; guarded by read_mutex_
  ServerMachine machine_;  // used by the server's thread
  Mailbox<ServerMessage> mail_;
  WorkersShared shared_;
  std::vector<std::unique_ptr<WorkerTask>> workers_;
  std::thread server_;
  std::unique_ptr<StepClock> clock_;  // null: steps have no limit
};

}  // namespace lockstep::internal::server
