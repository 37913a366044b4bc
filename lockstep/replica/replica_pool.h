// The replicas' threads: runs a body once for each replica, lanes as turns, and lets replicas meet.
// Walk: strategy/run.cpp -> here -> the user's step function
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/memory/tensor_cache.h"
#include "lockstep/replica/caller_state.h"
#include "lockstep/replica/cores.h"
#include "lockstep/replica/lanes.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/round.h"
#include "lockstep/replica/turn.h"

namespace lockstep::internal {

/// Thrown out of a meeting point when another replica failed; unwinds the step. It is a std::exception, because what
/// else passes through LibTorch's autograd engine leaves that thread's engine unusable. A step that catches it runs on
/// until its next meeting point, which throws it again; the run fails all the same.
class ReplicaStopped final : public std::exception {
 public:
  const char* what() const noexcept override { return "this replica's step was stopped because another one failed"; }
};

/// The replica threads of one strategy in this process. The first local replica runs on the thread that calls `run`;
/// every other one has a thread of its own, from construction to destruction (docs/threads.md).
///
/// A run is a row of rounds. In a round each lane's replicas run one after another, in replica order, each until it
/// waits at a meeting point or ends; the last one of a lane then meets the other lanes, one of which decides what
/// follows. A replica that ended takes part in no later round.
class ReplicaPool {
 public:
  /// `first` is the id of the first local replica in the whole run, for messages. Throws a ClusterError where a thread
  /// cannot be started; those that were started have ended then.
  /// With a `world`, which outlives the pool, the replicas of all its workers run and meet together.
  explicit ReplicaPool(LanePlan plan, ReplicaId first = 0, World* world = nullptr);
  /// Not while a run is under way: see abandon().
  ~ReplicaPool();
  ReplicaPool(const ReplicaPool&) = delete;
  ReplicaPool& operator=(const ReplicaPool&) = delete;

  /// Runs `body(replica)` for each local replica on its thread, under the caller's thread-local state, and returns when
  /// all have ended. Gives each replica's first error, null where it had none: the error of a meeting, whatever the
  /// body made of it, or else what the body threw. A replica that was stopped because of another's failure has none,
  /// and what it throws afterwards does not count. Where anything went wrong, on any worker, at least one replica has
  /// an error. `step` stands in what workers tell each other. One call at a time; not from a replica.
  std::span<const std::exception_ptr> run(FunctionRef<void(int64_t)> body, int64_t step = 0);

  /// Meets the other replicas. Call from `replica`'s thread inside `run`. Throws what the meeting threw, a UsageError
  /// where replicas arrived with different meetings, and ReplicaStopped where another replica failed. Each of them
  /// fails the run, and every later call in it throws ReplicaStopped.
  void meet(int64_t replica, Meeting& meeting);

  /// Gives the pool up for a reason from outside, such as the loss of another worker: every replica that waits for
  /// others, now or later, stops with a PeerError of that reason. Any thread; the first reason counts.
  void abort(const std::string& reason);

  /// Whether a run is under way. Any thread.
  bool running() const { return running_.load(std::memory_order_acquire); }
  /// Makes every replica that comes to a meeting point, or gets its turn, sleep for good. For a process that ends while
  /// a run is under way (std::exit in a step): the pool must then never be destroyed. Any thread.
  void abandon() { abandoned_.store(true, std::memory_order_release); }

  const LanePlan& plan() const { return plan_; }

 private:
  enum class Progress : uint8_t { kNotStarted, kRunning, kWaiting, kReturned, kFailed };

  // A replica's own thread writes these while it holds its lane's turn. Whoever decides reads them while all are at
  // rest; they are atomic only for report_stall, which looks at any time.
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
  /// Runs the body and arrives; gives whether this thread still holds its lane.
  bool run_body(int64_t replica);
  /// Passes the lane to the next replica of this round, or as the last of it completes the round. Gives whether
  /// `replica` holds the lane again at once.
  bool arrive(int64_t replica);
  /// Waits for the lane's turn inside a run.
  void take_turn(Replica& self);
  /// Meets the other lanes and carries the meeting out. Gives whether the run is over.
  bool complete_round(int lane);
  int64_t next_in_lane(int lane, int64_t from) const;  // -1: none

  // On one thread, all replicas at rest:
  /// What follows from where they are.
  void decide();
  /// The same for this worker alone.
  void decide_from(const RoundRecord& record);
  /// Tells the other workers what has come and hears what they have come to: where they do something else, or one of
  /// them failed, `peer_error_` says so. After a failure, be it this worker's, every worker knows that the run has
  /// failed.
  void tell_workers(const RoundRecord& record);
  /// The error of replicas that do not meet in the same order.
  std::exception_ptr different_meetings() const;
  /// Carries out stages up to the next one that runs on each lane.
  void carry_out_single_stages();
  /// Ends the meeting and the run by an error that every waiting replica gets.
  void fail(std::exception_ptr error);

  std::exception_ptr reason_to_abort() const;
  [[noreturn]] static void stop(Replica& self);
  void sleep_for_good_if_abandoned() const;
  /// Calls report_stall, once for each interval, however many threads wait.
  void stalled() const;
  void report_stall() const;

  const LanePlan plan_;
  const ReplicaId first_;
  World* const world_;  // null: this worker is alone
  const CoreHold cores_;
  std::vector<TensorCacheLease> caches_;  // one for each lane: its replicas' tensors, and what run() makes on lane 0
  std::vector<Replica> replicas_;
  LaneBarrier barrier_;
  Epoch starts_;  // advanced by run() and by end_threads()
  std::atomic<bool> ending_{false};
  std::atomic<bool> running_{false};
  std::atomic<bool> abandoned_{false};
  mutable std::atomic<int64_t> last_report_{0};  // of a stall, in milliseconds

  // Written by run() before starts_ advances, read by the replica threads after.
  const FunctionRef<void(int64_t)>* body_ = nullptr;
  CallerState caller_;
  std::atomic<uint32_t> run_number_{0};  // atomic only for threads that wait for their first turn
  bool runs_are_brief_ = false;          // the last one that was timed

  // Written by one thread while all lanes are in the barrier, read by all after it.
  uint32_t ended_run_ = 0;
  bool stopping_ = false;
  std::exception_ptr verdict_;  // the error of the meeting at hand
  std::vector<Meeting*> meetings_;
  std::vector<Arrival> arrivals_;
  std::span<const Stage> stages_;  // of the leading meeting; empty where there is none
  std::size_t stage_ = 0;          // the one that lanes carry out next

  int64_t step_ = 0;               // of the run under way
  bool workers_know_ = false;      // that the run has failed: they agree no more until the next one
  std::exception_ptr peer_error_;  // what other workers have come to, where the run failed because of them

  std::vector<std::exception_ptr> lane_errors_;  // each written by its lane in a stage, read in the barrier after it
  std::vector<std::exception_ptr> errors_;       // the result of run()

  std::atomic<bool> aborted_{false};
  mutable std::mutex reason_mutex_;
  std::string reason_;  // guarded by reason_mutex_
};

}  // namespace lockstep::internal
