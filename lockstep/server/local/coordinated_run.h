// What stands behind a Coordinator, whether the tasks of the run are threads or processes.
#pragma once

#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/stream_places.h"
#include "lockstep/server/step_call.h"

namespace lockstep::internal::inline server {

/// What a run begins with.
struct RunBegin {
  ChiefCut chief = {};
  int64_t applied = 0;  // steps with pushes that count
  std::vector<StreamPlace> streams = {};
  std::vector<UsedData> data = {};
};

class LocalRun;

class CoordinatedRun {
 public:
  virtual ~CoordinatedRun() = default;

  virtual ChiefTask& chief() = 0;
  /// Waits until the servers have applied all that the chief has decided so far.
  virtual void catch_up() = 0;
  /// All batches that decided steps have taken were used.
  virtual void settle_batches() = 0;
  /// What the program has changed since the last call holds for the step that is scheduled next. A UsageError
  /// (LS-STEP-VALUE) where an argument cannot go to another process.
  virtual void before_schedule(const StepCall& /*call*/) {}
  /// All steps have been decided: brings the program's variables up to date for the time after the run.
  virtual void finish() { catch_up(); }
  /// Where a next run begins, once all steps have been decided and applied.
  virtual RunBegin next_begin() = 0;
  /// The run, where its tasks are threads; otherwise null.
  virtual LocalRun* threads() { return nullptr; }
};

/// The run of threads. A UsageError (LS-EVALUATE) that names `call` where tasks are processes, which cannot do that.
LocalRun& require_threads(CoordinatedRun& run, const char* call);

}  // namespace lockstep::internal::server
