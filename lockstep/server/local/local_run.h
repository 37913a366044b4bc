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

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/local/mailbox.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/step_clock.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/stream_places.h"
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
class LocalRun final : public CoordinatedRun {
 public:
  LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options, const RunBegin& begin,
           const RunOptions& more = {});
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
  /// One thread at a time. In a run that is recorded or repeated, first waits for all steps that were scheduled before,
  /// for which a round that is not full counts as it is.
  void at_cut(FunctionRef<void(const RunBegin&)> fn) override;
  /// In the function of at_cut(): the place of a data set there; nothing where no scheduled step takes its batches.
  std::optional<lockstep::data::Cursor> place_of(const DistributedDataset& data, const RunBegin& cut) {
    return batches_.place_of(data, cut.chief.floor / parts_);
  }

 private:
  void wait_until_read(Position end);
  StepClock::Watched watched();
  void serve();
  /// Ends the threads.
  void stop();
  void carry(ServerOutput& out);
  /// On the server's thread: waits until at_cut() needs the values no longer.
  void freeze(int64_t cut);

  const std::shared_ptr<StrategyGate> gate_;
  const int64_t parts_;   // steps of a round; 1 without rounds
  const bool by_number_;  // RunBegin
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
  std::unique_ptr<StepClock> clock_;  // null: steps have no limit
};

}  // namespace lockstep::internal::server
