// A run of parameter servers whose tasks are threads of this process: what stands behind a Coordinator.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/values_store.h"
#include "lockstep/server/local/worker_task.h"

namespace lockstep::internal::inline server {

/// Owns the threads: one for each worker, and one that serves the values. They live as long as it.
class LocalRun final : public CoordinatedRun {
 public:
  LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options, const ChiefCut& begin);
  /// Ends the threads, when the functions that still run have ended.
  ~LocalRun() override;
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  ChiefTask& chief() override { return *chief_; }
  void catch_up() override;
  void settle_batches() override;

 private:
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
};

}  // namespace lockstep::internal::server
