// What stands behind a Coordinator, whether the tasks of the run are threads or processes.
#pragma once

#include "lockstep/server/local/chief_task.h"

namespace lockstep::internal::inline server {

class CoordinatedRun {
 public:
  virtual ~CoordinatedRun() = default;

  virtual ChiefTask& chief() = 0;
  /// Waits until the servers have applied all that the chief has decided so far.
  virtual void catch_up() = 0;
  /// All batches that decided steps have taken were used.
  virtual void settle_batches() = 0;
  /// What the program has changed since the last call holds for the step that is scheduled next.
  virtual void before_schedule() {}
  /// All steps have been decided: brings the program's variables up to date for the time after the run.
  virtual void finish() { catch_up(); }
};

}  // namespace lockstep::internal::server
