// A run of parameter servers whose tasks are threads of this process: what stands behind a Coordinator.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/values_store.h"
#include "lockstep/server/local/worker_task.h"

namespace lockstep::internal::inline server {

/// Owns the threads: one for each worker, and one that serves the values. They live as long as it.
class LocalRun {
 public:
  LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options, const ChiefCut& begin);
  /// Ends the threads, when the functions that still run have ended.
  ~LocalRun();
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  ChiefTask& chief() { return *chief_; }
  /// Deals out the parts of evaluations, which are numbered apart from steps and push nothing.
  ChiefTask& evaluation_chief() { return *evaluation_chief_; }
  Strategy& strategy() const { return shared_.strategy; }
  const std::shared_ptr<StrategyGate>& gate() const { return gate_; }
  int64_t workers() const { return shared_.workers; }
  bool in_rounds() const { return shared_.in_rounds; }
  /// Waits until the server has applied all that the chief has decided so far.
  void catch_up();
  /// All batches that decided steps have taken were used.
  void settle_batches();

 private:
  void serve();
  /// Ends the threads.
  void stop();
  void carry(ServerOutput& out);

  const std::shared_ptr<StrategyGate> gate_;
  const int64_t parts_;  // steps of a round; 1 without rounds
  ScheduledBatches batches_;
  std::shared_ptr<ChiefTask> chief_;
  std::shared_ptr<ChiefTask> evaluation_chief_;
  ValuesStore store_;
  std::mutex read_mutex_;
  std::condition_variable has_read_;
  Position read_;          // what the server has applied; guarded by read_mutex_
  ServerMachine machine_;  // used by the server's thread
  Mailbox<ServerMessage> mail_;
  WorkersShared shared_;
  std::vector<std::unique_ptr<WorkerTask>> workers_;
  std::thread server_;
};

}  // namespace lockstep::internal::server
