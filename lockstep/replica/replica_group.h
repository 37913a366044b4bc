// The replicas of one strategy in this process: their contexts, their random streams, and which call is allowed where.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/core/findings.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/replica/call_gate.h"
#include "lockstep/replica/loss/batch_uses.h"
#include "lockstep/replica/pool/lanes.h"
#include "lockstep/replica/pool/replica_pool.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/replica/replica_block.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/run_state.h"
#include "lockstep/replica/step_host.h"

namespace lockstep::internal::inline replica {

/// Shared by a strategy and the handles that it gave out, which may outlive it; the threads end with the strategy.
class ReplicaGroup : public std::enable_shared_from_this<ReplicaGroup> {
 public:
  /// `host` is used inside runs only. Without a `reducer`: TreeReducer's.
  ReplicaGroup(LanePlan plan, ReplicaBlock block, uint64_t seed, StepHost& host,
               std::shared_ptr<const Reducer> reducer = nullptr,
               std::shared_ptr<Rounds> rounds = std::make_shared<Rounds>(one_worker()));
  ~ReplicaGroup();

  /// Ends the threads. The strategy's destructor calls it; afterwards run() throws an InternalError, and everything
  /// else still works. Returns false where a run is under way, because a step has ended the process (std::exit): then
  /// replicas may still run, what they use must stay, and the group keeps itself alive for good.
  bool stop();

  /// Runs `body` once for each replica of this process, each in its context and on its thread. When all have ended
  /// without an error, runs `finish` once on the calling thread. Throws a ReplicaError where a replica or `finish`
  /// failed, `finish` in the name of the first replica. A run without an error is counted. The caller has made a
  /// CallScope.
  void run(RunMode mode, FunctionRef<void(ReplicaContext&)> body, FunctionRef<void()> finish);

  /// Meets the other replicas, from inside a step.
  void meet(const ReplicaContext& context, Meeting& meeting) { pool_->meet(context.local_index_, meeting); }

  // The next three compute with the values of all replicas of all workers, from those of this process. With one worker
  // they may be called on any replica's thread, several at a time. With several workers they are called on one thread,
  // while all local replicas are at rest, in the same order on every worker. No gradient goes through them.

  /// The reduction of all values by the strategy's reducer. With several workers undefined values are absent
  /// (reduce_across).
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> mine) const;
  /// All replicas' values, in replica order.
  std::vector<at::Tensor> of_all_replicas(std::span<const at::Tensor> mine) const;
  /// The value of replica `from`. `value` is used only where this process has that replica.
  at::Tensor of_replica(ReplicaId from, const at::Tensor& value) const;

  Rounds& rounds() const { return *rounds_; }
  int64_t num_workers() const { return rounds_->num_workers(); }
  const Reducer& reducer() const { return *reducer_; }
  /// Whether this process has all summands and adds them in tree order. Then gradients may be added where they are
  /// used.
  bool reduces_in_tree_order() const { return in_tree_order_ && num_workers() == 1; }

  const LanePlan& plan() const { return plan_; }
  /// Which replicas this process has.
  const ReplicaBlock& block() const { return block_; }
  const RunState& state() const { return state_; }
  uint64_t seed() const { return state_.seed; }
  int64_t step() const { return state_.step; }
  void set_step(int64_t step) {
    state_.step = step;
    rounds_->set_next_step(step);
  }
  void set_evaluations(int64_t evaluations) { state_.evaluations = evaluations; }
  bool evaluating() const { return state_.evaluates(); }
  /// Whether a run or evaluation is under way.
  bool running() const { return state_.running; }
  /// Whether a worker had been asked for a stop when the last run without an error ended: the same on all.
  bool stop_requested() const { return stop_requested_; }
  int64_t num_replicas() const { return block_.all; }          // over all workers
  int64_t num_local_replicas() const { return block_.local; }  // of this process
  ReplicaId first_replica() const { return block_.first; }
  StepHost& host() const { return host_; }

  /// From now on each call from outside of steps passes it. Called while no call is under way.
  void set_gate(std::shared_ptr<CallGate> gate) { gate_ = std::move(gate); }

  /// The findings in the program's steps.
  Findings& findings() { return findings_; }
  /// Which batches of data sets were given to runs.
  BatchUses& batch_uses() { return batch_uses_; }

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

  void begin_run(int64_t local_index);
  void report_losses();
  void report_seed();
  [[noreturn]] void throw_replica_error(std::span<const std::exception_ptr> errors) const;

  const LanePlan plan_;
  const ReplicaBlock block_;
  const std::shared_ptr<Rounds> rounds_;
  const std::shared_ptr<const Reducer> reducer_;
  const bool in_tree_order_;
  StepHost& host_;  // may dangle once stopped
  std::unique_ptr<ReplicaPool> pool_;
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::vector<Streams> streams_;  // each used by its replica's thread
  RandomStream merge_stream_;     // used while all replicas are at rest
  RunState state_;
  bool stop_requested_ = false;
  int64_t runs_ = 0;                          // since this group began
  std::atomic<const void*> caller_{nullptr};  // the thread whose call is under way
  std::shared_ptr<CallGate> gate_;            // null: there is none
  Findings findings_;
  BatchUses batch_uses_;
};

/// Which workers take part in a call.
enum class Workers { kAll, kThis };

/// Entered by each call that is made outside of replicas. Throws a UsageError for a call inside a step, for a call
/// while another thread's call is under way, and, with any number of workers, for a call of all workers while the chief
/// is alone (ChiefScope). Where all workers take part, they agree that they make the outermost call, and each call in a
/// merge function. Calls of one thread nest, and merge functions may make them.
class CallScope {
 public:
  /// `call` is what the user wrote, `inside` what to write inside a step instead.
  CallScope(ReplicaGroup& group, const char* call, const char* inside, Workers workers = Workers::kAll,
            std::string_view name = {});
  ~CallScope();
  /// Throws the UsageError of a call inside a step.
  static void refuse_in_step(const char* call, const char* inside);
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Throws a UsageError where this call is inside another call of this thread, or in a merge function.
  void require_outermost() const;
  /// Whether all workers make this call together, and may agree on more of it. Also with one worker. Not inside another
  /// call, to whose inner calls other workers may not come.
  bool is_agreed() const { return agreed_; }

 private:
  ReplicaGroup& group_;
  const char* const call_;
  const GateHold gate_;
  bool outermost_ = false;
  bool agreed_ = false;
};

/// While it lives, the calling thread does work that the chief does alone.
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

/// Gives the layers above what a context knows beyond its public members.
struct ContextAccess {
  static int64_t local_index(const ReplicaContext& context) { return context.local_index_; }
  static ReplicaGroup& group(const ReplicaContext& context) { return context.group_; }
  static void check_is_current(const ReplicaContext& context, const char* call) { context.check_is_current(call); }
  static const std::shared_ptr<ScaledLosses>& losses(const ReplicaContext& context) { return context.losses_; }
  static const ScaledBackwards& scaled_backwards(const ReplicaContext& context) { return context.losses_->counts(); }
  /// Those after `mark` whose gradients were not dropped.
  static ScaledBackwards scaled_backwards_since(const ReplicaContext& context, const ScaledBackwards& mark) {
    return scaled_backwards(context).since(later(mark, context.dropped_));
  }
  /// Call it after gradients were dropped: backwards until now count no more.
  static void drop_scaled_backwards(ReplicaContext& context) { context.dropped_ = scaled_backwards(context); }
  /// Whether this replica's part of the one Batch that run() was given has no samples.
  static bool has_empty_part(const ReplicaContext& context) {
    return context.share_.batches == 1 && context.share_.part == 0;
  }
  /// Tells a context which part of the batch is its replica's; `batches` is how many Batch arguments run() was given.
  static void set_share(ReplicaContext& context, int batches, int64_t part, int64_t whole, int64_t padding) {
    context.share_ = {batches, part, whole};
    context.padding_ = padding;
  }
};

}  // namespace lockstep::internal::replica
