// What a ParameterServerStrategy keeps from one coordinate() to the next, and how checkpoints reach it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/server/coordinator.h"
#include "lockstep/server/evaluator.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/own_things.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/step_call.h"
#include "lockstep/strategy/served_state.h"

namespace lockstep::internal::inline server {

/// What lasts from one coordinate() to the next.
struct CoordinatorState {
  std::vector<NamedStep> steps = {};       // by kind
  std::vector<std::string> trainers = {};  // whose functions are among them: the options of each
  std::unique_ptr<OwnThings> own = {};
  std::map<const void*, int64_t> batch_indexes = {};  // of a worker that is a process: ScheduledBatches
  std::vector<std::weak_ptr<TableState>> tables = {};
  RunBegin begin = {};  // where the next run begins
  int64_t runs = 0;     // of the strategy below, as of then
  std::atomic<bool> is_under_way = false;
  std::recursive_mutex run_mutex = {};
  LocalRun* run = nullptr;              // that is under way; guarded by run_mutex
  CoordinatedRun* processes = nullptr;  // the same, where its tasks are processes
  std::function<void()> restart = {};   // begins it anew at `begin`; the same
  std::unique_ptr<ServedState> served = {};
  std::vector<OnCheckpoint> on_checkpoint = {};
  std::unique_ptr<Coordinator> coordinator = {};  // of the last run: a program may use it too late
  std::shared_ptr<RecordFile> record = {};        // of all runs
  std::optional<ReplayRecord> replayed = std::nullopt;
  std::size_t next_replayed = 0;  // which of its runs is next
  bool has_stopped = false;       // the replay
};

/// Where a run begins of which only the strategy's own step is known.
RunBegin begin_of_step(int64_t step, int64_t parts);

/// The state of `strategy` for checkpoints: the tables of `state`, and which scheduled steps count. `parts` is how many
/// steps make one of the strategy's own. Both outlive it.
std::unique_ptr<ServedState> served_by_threads(const Strategy& strategy, std::shared_ptr<StrategyGate> gate,
                                               CoordinatorState& state, int64_t workers, int64_t parts);

}  // namespace lockstep::internal::server
