// What stands behind a Coordinator, whether the tasks of the run are threads or processes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/stream_places.h"
#include "lockstep/server/step_call.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// What a run begins with.
struct RunBegin {
  ChiefCut chief = {};
  int64_t applied = 0;  // steps with pushes that count
  std::vector<StreamPlace> streams = {};
  std::vector<UsedData> data = {};
  bool by_number = false;  // `data` says nothing of data sets that steps have used: batch 0 is at the begin of each
};

class CoordinatedRun {
 public:
  virtual ~CoordinatedRun() = default;

  virtual ChiefTask& chief() = 0;
  /// Deals out the parts of evaluations, which are numbered apart from steps and push nothing.
  virtual ChiefTask& evaluation_chief() = 0;
  virtual Strategy& strategy() = 0;
  virtual const std::shared_ptr<StrategyGate>& gate() const = 0;
  virtual int64_t workers() const = 0;
  virtual bool in_rounds() const = 0;
  /// Waits until the servers have applied all that the chief has decided so far.
  virtual void catch_up() = 0;
  /// All batches that decided steps have taken were used.
  virtual void settle_batches() = 0;
  /// What the program has changed since the last call holds for the step that is scheduled next. A UsageError
  /// (LS-STEP-VALUE) where an argument cannot go to another process.
  virtual void before_schedule(const StepCall& /*call*/) {}
  /// All steps have been decided: brings the program's variables up to date with the servers, and the servers with what
  /// the program has changed.
  virtual void finish() { catch_up(); }
  /// Makes a cut of all servers behind the decisions so far, and calls `fn` while the strategy has the state of it. A
  /// round that is not full yet is no part of it.
  virtual void at_cut(FunctionRef<void(const RunBegin&)> fn) = 0;
  /// Where a next run begins, once all steps have been decided and applied.
  virtual RunBegin next_begin() = 0;
  /// The functions of steps are called in other processes, by their kinds.
  virtual bool has_processes() const { return false; }
  /// A UsageError (LS-EVALUATE) where workers cannot call the function of an evaluation: nothing is a function that is
  /// no step's.
  virtual void before_evaluate(std::optional<uint32_t> /*kind*/) {}
};

}  // namespace lockstep::internal::server
