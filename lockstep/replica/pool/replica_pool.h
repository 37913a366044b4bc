// The replicas' threads: runs a body once for each replica, one replica of a lane at a time, and lets replicas meet.
// Walk: strategy/run.cpp -> here -> the user's step function
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/memory/tensor_cache.h"
#include "lockstep/replica/call_order.h"
#include "lockstep/replica/caller_state.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/pool/cores.h"
#include "lockstep/replica/pool/lanes.h"
#include "lockstep/replica/pool/round.h"
#include "lockstep/replica/pool/turn.h"

namespace lockstep::internal::inline replica {

/// Thrown out of a meeting point when another replica failed; unwinds the step. It is a std::exception, because any
/// other exception that passes through LibTorch's autograd engine leaves the engine of that thread unusable. A step
/// that catches it runs on until its next meeting point, which throws it again; the run fails all the same.
class ReplicaStopped final : public std::exception {
 public:
  const char* what() const noexcept override { return "this replica's step was stopped because another one failed"; }
};

/// Milliseconds of a clock that takes a few nanoseconds to read and advances every few milliseconds.
int64_t coarse_now();

/// How long a wait is to last on when the run that it is for has lasted `run`: until that is `interval`. Nothing where
/// it is over, and a report is due.
inline std::optional<std::chrono::milliseconds> left_until_stall(std::chrono::milliseconds run,
                                                                 std::chrono::milliseconds interval) {
  return run < interval ? std::optional(interval - run) : std::nullopt;
}

/// The replica threads of one strategy in this process. The first local replica runs on the thread that calls `run`;
/// every other replica has its own thread, from construction to destruction (docs/threads.md).
///
/// A run is a sequence of rounds. In a round the replicas of each lane run one after another, in replica order; each
/// runs until it waits at a meeting point or ends. The last one of each lane then meets the other lanes at a barrier,
/// and the last lane to arrive decides what follows. A replica that has ended takes part in no later round.
class ReplicaPool {
 public:
  /// `first` is the id of the first local replica in the whole run, for messages. Throws a ClusterError where a thread
  /// cannot be started; the threads that were started before it have ended then. With `rounds`, which outlives the
  /// pool, the replicas of all workers run and meet together.
  explicit ReplicaPool(LanePlan plan, ReplicaId first = 0, Rounds* rounds = nullptr);
  /// Must not be called while a run is under way: see abandon().
  ~ReplicaPool();
  ReplicaPool(const ReplicaPool&) = delete;
  ReplicaPool& operator=(const ReplicaPool&) = delete;

  /// Runs `body(replica)` for each local replica on its thread, under the caller's thread-local state, and returns when
  /// all have ended. Returns each replica's first error, null where it had none: the error of a meeting, even where the
  /// body caught it, or else what the body threw. A replica that was stopped because another one failed has none, and
  /// what it throws afterwards does not count. Where anything went wrong, on any worker, at least one replica has an
  /// error. The result is valid until the next call. `step` is the number of the step that workers tell each other. One
  /// call at a time; not from a replica. In a child that was forked after the pool was made, where its threads do not
  /// exist, a UsageError LS-FORKED.
  std::span<const std::exception_ptr> run(FunctionRef<void(int64_t)> body, int64_t step = 0);

  /// Meets the other replicas. Call from `replica`'s thread inside `run`. Throws what the meeting threw, a UsageError
  /// where replicas arrived with different meetings, and ReplicaStopped where another replica failed. Each of them
  /// fails the run, and every later call in it throws ReplicaStopped.
  void meet(int64_t replica, Meeting& meeting);

  /// Gives the pool up for a reason from outside, such as the loss of another worker: every replica that waits at a
  /// meeting point when its round is complete, now or later, gets a PeerError with that reason. Any thread may call;
  /// the first reason counts.
  void abort(const std::string& reason);

  /// Whether a run is under way. Any thread may call.
  bool running() const { return running_.load(std::memory_order_acquire); }
  /// Makes every replica that comes to a meeting point, or gets its turn, sleep for good. For a process that ends while
  /// a run is under way (std::exit in a step): the pool must then never be destroyed. Any thread may call.
  void abandon() { abandoned_.store(true, std::memory_order_release); }

  const LanePlan& plan() const { return plan_; }

 private:
  enum class Progress : uint8_t { kNotStarted, kRunning, kWaiting, kReturned, kFailed };

  // Invariant: a replica's own thread writes these while it holds its lane's turn, and the thread that decides reads
  // them while all replicas are at rest. They are atomic only for report_stall, which looks at any time.
  struct alignas(64) Replica {
    std::atomic<Progress> progress{Progress::kReturned};
    std::atomic<const char*> at{""};   // what() of the last meeting
    std::atomic<int64_t> meetings{0};  // how many it has come to in this run
    Meeting* meeting = nullptr;
    std::exception_ptr error;  // the first one
    bool stopped = false;      // another's failure has reached it
    Turn turn;
    std::thread thread;  // none for the first replica

    Progress now() const { return progress.load(std::memory_order_relaxed); }
    bool ended() const { return now() == Progress::kReturned || now() == Progress::kFailed; }
  };

  void start_threads();
  void end_threads();
  void thread_main(int64_t replica);
  /// Throws the UsageError LS-FORKED in a forked child, where the threads do not exist. Every wait comes after it.
  void require_threads() const;
  /// In place of end_threads() in a forked child: it waits for nothing.
  void forget_threads();
  /// Runs the body and arrives; returns whether this thread still holds its lane.
  bool run_body(int64_t replica);
  /// Passes the lane to its next replica of this round; the last replica of the lane first completes the round. Returns
  /// whether `replica` holds the lane again at once.
  bool arrive(int64_t replica);
  /// Waits for the lane's turn inside a run.
  void take_turn(Replica& self);
  /// Meets the other lanes and carries the meeting out. Returns whether the run is over.
  bool complete_round(int lane);
  int64_t next_in_lane(int lane, int64_t from) const;  // -1: none

  // These run on one thread, that of `lane`, while all replicas are at rest:
  /// Decides what follows from where the replicas are.
  void decide(int lane);
  /// Decides for this worker alone. `error` is what the workers, or the places of the calls, led to; or null.
  void decide_from(const RoundRecord& record, std::exception_ptr error);
  /// Tells the other workers what this worker's replicas have come to, and hears what theirs have come to. Where any
  /// worker does something else, or has failed, rounds_->failure() says so on every worker.
  void tell_workers(const RoundRecord& record);
  /// Carries out stages up to the next one that runs on each lane.
  void carry_out_single_stages(int lane);
  /// Ends the meeting and the run with an error that every waiting replica gets.
  void fail(std::exception_ptr error);

  std::exception_ptr reason_to_abort() const;
  [[noreturn]] static void stop(Replica& self);
  void sleep_for_good_if_abandoned() const;
  /// Calls report_stall once for each interval, however many threads wait.
  void stalled() const;
  /// A replica that waits for its first turn since before the run: reports the run once it has lasted stall_interval(),
  /// and returns when to look again. Between runs no thread is late.
  std::chrono::milliseconds look_from_first_turn() const;
  void report_stall() const;

  const LanePlan plan_;
  const ReplicaId first_;
  Rounds* const rounds_;       // null: this worker is alone
  const ProcessMark process_;  // where the threads are
  const CoreHold cores_;
  std::vector<TensorCacheLease> caches_;  // one for each lane: its replicas use it, and run() uses lane 0's
  std::vector<Replica> replicas_;
  LaneBarrier barrier_;
  Epoch starts_;  // advanced by run() and by end_threads()
  std::atomic<bool> ending_{false};
  std::atomic<bool> running_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<int64_t> run_began_{0};            // in milliseconds of coarse_now()
  mutable std::atomic<int64_t> last_report_{0};  // of a stall, in milliseconds

  // Invariant: run() writes these before starts_ advances, and the replica threads read them afterwards.
  const FunctionRef<void(int64_t)>* body_ = nullptr;
  CallerState caller_;
  std::atomic<uint32_t> run_number_{0};
  bool runs_are_brief_ = false;  // the last one that was timed

  // Invariant: one thread writes these while all lanes are in the barrier, and all threads read them after it. run()
  // also writes some of them, between runs.
  uint32_t ended_run_ = 0;
  bool stopping_ = false;
  std::exception_ptr verdict_;  // the error of the current meeting, or of the end of the run
  CallOrder order_;
  std::vector<Meeting*> meetings_;
  std::vector<Arrival> arrivals_;
  std::span<const Stage> stages_;  // of the leading meeting; empty where there is none
  std::size_t stage_ = 0;          // the one that lanes carry out next

  int64_t step_ = 0;  // of the run under way

  std::vector<std::exception_ptr> lane_errors_;  // each written by its lane in a stage, read in the barrier after it
  std::vector<std::exception_ptr> errors_;       // the result of run()

  std::atomic<bool> aborted_{false};
  mutable std::mutex reason_mutex_;
  std::string reason_;  // guarded by reason_mutex_
};

}  // namespace lockstep::internal::replica
