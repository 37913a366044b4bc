// The chief's copy of the strategy, which is a cache of what servers that are processes have.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/remote/shared_state.h"

namespace lockstep::internal::inline server {

/// Any thread that holds no lock of the run. All that it refers to outlives it.
class ChiefCopy {
 public:
  /// Sends the whole of the copy to the servers. The run begins behind `counted` steps.
  ChiefCopy(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const Catalog& catalog, ChiefTask& chief,
            int64_t counted);

  /// Sends what the program has changed, so that it holds for the step that is scheduled next. A UsageError
  /// (LS-MADE-LATE) for a schedule that was set after the tasks had come together.
  void before_schedule();
  /// Sends what the program has changed, and takes what the servers have changed.
  void refresh();
  /// CoordinatedRun::at_cut().
  void at_cut(FunctionRef<void(const RunBegin&)> fn);

 private:
  void require_known_schedules();
  void send_changes();
  ChiefCut take_cut();

  Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  ChiefTask& chief_;
  const std::vector<std::string> schedules_;  // that all tasks know
  std::mutex mutex_;
  SharedState state_;                       // guarded by mutex_
  std::atomic<uint64_t> sent_writes_;       // of the gate, when changes were sent last; changed under mutex_
  std::atomic<uint64_t> known_writes_ = 0;  // the same, when the schedules were those that all tasks know
  Position known_ = 0;                      // the place of the log that the copy has seen; guarded by mutex_
};

}  // namespace lockstep::internal::server
