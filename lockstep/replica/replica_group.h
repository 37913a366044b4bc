// The replicas of one strategy in this process: their contexts, their random streams, and who may call what, where.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/findings.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/replica/lanes.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_pool.h"

namespace lockstep {
class Strategy;
}

namespace lockstep::internal {

class VariableRegistry;

/// Shared by a strategy and the handles that it gave out, which may outlive it; the threads end with the strategy.
class ReplicaGroup {
 public:
  /// Without a `reducer`: TreeReducer's.
  ReplicaGroup(LanePlan plan, uint64_t seed, Strategy* strategy, std::shared_ptr<const Reducer> reducer = nullptr);
  ~ReplicaGroup();

  /// Ends the threads. Called by the strategy's destructor; afterwards runs are an InternalError, the rest goes on.
  void stop();

  /// What one call of run() or evaluate() is.
  enum class Mode { kStep, kEvaluate };

  /// Runs `body` once for each replica of this process, each in its context, on its thread. Throws ReplicaError where
  /// any failed; a step that did not fail is counted. The caller has made a CallScope.
  void run(Mode mode, FunctionRef<void(ReplicaContext&)> body);

  /// Meets the other replicas, from inside a step.
  void meet(const ReplicaContext& context, Meeting& meeting) { pool_->meet(context.local_index_, meeting); }

  /// One tensor from `values`, of all replicas, by the strategy's reducer: on any replica's thread, without gradient.
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const {
    return reduce_by(*reducer_, reduction, values);
  }
  const Reducer& reducer() const { return *reducer_; }
  /// Whether values are added in tree order, by whatever code: gradients may then be added where they are used.
  bool reduces_in_tree_order() const { return in_tree_order_; }

  const LanePlan& plan() const { return plan_; }
  uint64_t seed() const { return seed_; }
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  bool evaluating() const { return mode_ == Mode::kEvaluate; }
  /// Whether a run or evaluation is under way.
  bool running() const { return running_; }
  int64_t num_replicas() const { return plan_.num_replicas; }        // over all workers
  int64_t num_local_replicas() const { return plan_.num_replicas; }  // of this process
  ReplicaId first_replica() const { return 0; }
  Strategy* strategy() const { return strategy_; }
  /// The strategy's variables, for calls that a step makes on its context; set by the strategy, whose they are.
  VariableRegistry* variables() const { return variables_; }
  void set_variables(VariableRegistry* variables) { variables_ = variables; }

  /// How many variables are damaged: where none is, nobody has to look at each. Any thread.
  std::atomic<int64_t>& damaged_variables() { return damaged_variables_; }
  /// For how many variables another value stands in: likewise.
  std::atomic<int64_t>& stand_ins() { return stand_ins_; }
  /// How many variables and optimizers keep what they were before this run's first write to them: likewise.
  std::atomic<int64_t>& written_variables() { return written_variables_; }

  /// What was noticed in the program's steps.
  Findings& findings() { return findings_; }

  ReplicaContext& context(int64_t local_index) { return *contexts_[local_index]; }
  RandomStream& stream(int64_t local_index) { return streams_[local_index].own; }
  RandomStream& shared_stream(int64_t local_index) { return streams_[local_index].shared; }
  RandomStream& merge_stream() { return merge_stream_; }

 private:
  friend class CallScope;
  struct alignas(64) Streams {
    RandomStream own;
    RandomStream shared;
  };

  void restart_streams(int64_t local_index);
  [[noreturn]] void throw_replica_error(std::span<const std::exception_ptr> errors) const;

  const LanePlan plan_;
  const uint64_t seed_;
  const std::shared_ptr<const Reducer> reducer_;
  const bool in_tree_order_;
  // Both may dangle once stopped: they are used inside a run only.
  Strategy* const strategy_;
  VariableRegistry* variables_ = nullptr;
  std::unique_ptr<ReplicaPool> pool_;
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::vector<Streams> streams_;  // each used by its replica's thread
  RandomStream merge_stream_;     // used while all replicas are at rest
  // Written by the thread that holds the CallScope, read by the replicas of its run.
  int64_t step_ = 0;
  int64_t evaluations_ = 0;  // since the last step: each draws from streams of its own
  Mode mode_ = Mode::kStep;
  bool running_ = false;
  std::atomic<const void*> caller_{nullptr};  // the thread whose call is under way
  Findings findings_;
  std::atomic<int64_t> damaged_variables_{0};
  std::atomic<int64_t> stand_ins_{0};
  std::atomic<int64_t> written_variables_{0};
};

/// Which workers take part in a call.
enum class Workers { kAll, kThis };

/// Entered by each call that is made outside of replicas. Throws the UsageError of a call inside a step, and of a call
/// while another thread's is under way; and, with any number of workers, that of a call in which all take part where
/// the chief is alone (ChiefScope). Calls of one thread nest, and merge functions may make them.
class CallScope {
 public:
  /// `call` is what the user wrote, `inside` what to write inside a step instead.
  CallScope(ReplicaGroup& group, const char* call, const char* inside, Workers workers = Workers::kAll);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Throws the UsageError of a run inside another run of this thread.
  void require_outermost() const;

 private:
  ReplicaGroup& group_;
  const char* const call_;
  bool outermost_ = false;
};

/// While it lives, the calling thread does what the chief does alone.
class ChiefScope {
 public:
  explicit ChiefScope(const ReplicaGroup& group);
  ~ChiefScope();
  ChiefScope(const ChiefScope&) = delete;
  ChiefScope& operator=(const ChiefScope&) = delete;

 private:
  const ReplicaGroup* const outer_;
};

/// The context of the step that this thread is in, or null.
const ReplicaContext* current_context();

/// For the layers above: what a context knows beyond its public members.
struct ContextAccess {
  static int64_t local_index(const ReplicaContext& context) { return context.local_index_; }
  static ReplicaGroup& group(const ReplicaContext& context) { return context.group_; }
  static void check_is_current(const ReplicaContext& context, const char* call) { context.check_is_current(call); }
  static const ScaleCalls& scale_calls(const ReplicaContext& context) { return context.scale_calls_; }
  /// Those after `mark` whose gradients still stand.
  static ScaleCalls scale_calls_since(const ReplicaContext& context, const ScaleCalls& mark) {
    return context.scale_calls_.since(later(mark, context.scale_calls_dropped_));
  }
  /// After gradients were dropped: what was scaled until now counts no more.
  static void drop_scale_calls(ReplicaContext& context) { context.scale_calls_dropped_ = context.scale_calls_; }
  /// Whether run() was given a Batch.
  static bool has_batch(const ReplicaContext& context) { return context.share_.batches > 0; }
  /// Tells a context which part of the batch is its replica's; `batches` is how many Batch arguments run() was given.
  static void set_share(ReplicaContext& context, int batches, int64_t part, int64_t whole) {
    context.share_ = {batches, part, whole};
  }
};

}  // namespace lockstep::internal
