// The chief's copy of the strategy, which is a cache of what servers that are processes have.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/remote/shared_state.h"
#include "lockstep/server/remote/task_process.h"
#include "lockstep/server/remote/told_rates.h"

namespace lockstep::internal::inline server {

/// Any thread that holds no lock of the run. All that it refers to outlives it.
class ChiefCopy {
 public:
  /// Sends the whole of the copy to the servers. The run begins behind `counted` steps.
  ChiefCopy(const RemoteSetup& setup, ChiefTask& chief, int64_t counted);

  /// Sends what the program has changed, so that it holds for the step that is scheduled next.
  void before_schedule();
  /// Sends what the program has changed, and takes what the servers have changed.
  void refresh();
  /// CoordinatedRun::at_cut().
  void at_cut(FunctionRef<void(const RunBegin&)> fn);

 private:
  void send_changes();
  ChiefCut take_cut();

  Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  ChiefTask& chief_;
  std::atomic<int64_t> scheduled_ = 0;  // steps of this run, or more
  std::mutex mutex_;
  ToldRates rates_;                    // changed under mutex_
  SharedState state_;                  // guarded by mutex_
  std::atomic<uint64_t> sent_writes_;  // of the gate, when changes were sent last; changed under mutex_
  Position known_ = 0;                 // the place of the log that the copy has seen; guarded by mutex_
};

}  // namespace lockstep::internal::server
