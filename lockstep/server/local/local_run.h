// A run of parameter servers whose tasks are threads of this process: what stands behind a Coordinator.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/stream_places.h"
#include "lockstep/server/local/values_store.h"
#include "lockstep/server/local/worker_task.h"

namespace lockstep::internal::inline server {

/// Owns the threads: one for each worker, and one that serves the values. They live as long as it.
class LocalRun final : public CoordinatedRun {
 public:
  LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options, const RunBegin& begin);
  /// Ends the threads, when the functions that still run have ended.
  ~LocalRun() override;
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  ChiefTask& chief() override { return *chief_; }
  ChiefTask& evaluation_chief() override { return *evaluation_chief_; }
  Strategy& strategy() override { return shared_.strategy; }
  const std::shared_ptr<StrategyGate>& gate() const override { return gate_; }
  int64_t workers() const override { return shared_.workers; }
  bool in_rounds() const override { return shared_.in_rounds; }
  void catch_up() override;
  void settle_batches() override;
  /// Where a next run begins, once all steps have been decided and applied.
  RunBegin next_begin() override;
  /// Calls `fn` while the values are those after the steps that it is told of, whatever is decided meanwhile. One
  /// thread at a time.
  void at_cut(FunctionRef<void(const RunBegin&)> fn);
  /// In the function of at_cut(): the place of a data set there; nothing where no scheduled step takes its batches.
  std::optional<lockstep::data::Cursor> place_of(const DistributedDataset& data, const RunBegin& cut) {
    return batches_.place_of(data, cut.chief.floor / parts_);
  }

 private:
  void serve();
  /// Ends the threads.
  void stop();
  void carry(ServerOutput& out);
  /// On the server's thread: waits until at_cut() needs the values no longer.
  void freeze(int64_t cut);

  const std::shared_ptr<StrategyGate> gate_;
  const int64_t parts_;  // steps of a round; 1 without rounds
  ScheduledBatches batches_;
  StreamPlaces places_;
  std::shared_ptr<ChiefTask> chief_;
  std::shared_ptr<ChiefTask> evaluation_chief_;
  ValuesStore store_;
  std::mutex read_mutex_;
  std::condition_variable has_read_;
  Position read_;          // what the server has applied; guarded by read_mutex_
  ServerMachine machine_;  // used by the server's thread
  std::mutex cut_mutex_;
  std::condition_variable cut_changed_;
  int64_t cuts_ = 0;                                  // that were begun; guarded by cut_mutex_, as the next two
  int64_t frozen_ = 0;                                // the cut that the server waits in; 0: none
  int64_t over_ = 0;                                  // the last one that it need not wait in
  std::optional<int64_t> unreported_ = std::nullopt;  // used by the server's thread: a cut that is over
  Mailbox<ServerMessage> mail_;
  WorkersShared shared_;
  std::vector<std::unique_ptr<WorkerTask>> workers_;
  std::thread server_;
};

}  // namespace lockstep::internal::server
