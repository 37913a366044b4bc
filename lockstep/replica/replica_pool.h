// The replicas' threads: runs a body once for each replica, lanes as turns, and lets replicas meet.
// Walk: strategy/run.cpp -> here -> the user's step function
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/memory/tensor_cache.h"
#include "lockstep/replica/caller_state.h"
#include "lockstep/replica/lanes.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/turn.h"

namespace lockstep::internal {

/// Thrown out of a meeting point when another replica failed; unwinds the step. Not a std::exception, so that a step's
/// `catch (const std::exception&)` does not swallow it.
struct ReplicaStopped {};

/// The replica threads of one strategy in this process. Replica 0 runs on the thread that calls `run`; every other
/// replica has a thread of its own, from construction to destruction (docs/threads.md).
///
/// A run is a row of rounds. In a round each lane's replicas run one after another, in replica order, each until it
/// waits at a meeting point or ends; the last one of a lane then meets the other lanes, one of which decides what
/// follows. A replica that ended takes part in no later round.
class ReplicaPool {
 public:
  explicit ReplicaPool(LanePlan plan);
  ~ReplicaPool();
  ReplicaPool(const ReplicaPool&) = delete;
  ReplicaPool& operator=(const ReplicaPool&) = delete;

  /// Runs `body(replica)` for each local replica on its thread, under the caller's thread-local state, and returns when
  /// all have ended. Gives each replica's exception, null where it had none; a replica that was stopped because of
  /// another's failure has none. One call at a time; not from a replica.
  std::span<const std::exception_ptr> run(FunctionRef<void(int64_t)> body);

  /// Meets the other replicas. Call from `replica`'s thread inside `run`. Throws what the meeting threw, a UsageError
  /// where replicas arrived with different meetings, and ReplicaStopped where another replica failed.
  void meet(int64_t replica, Meeting& meeting);

  const LanePlan& plan() const { return plan_; }

 private:
  enum class Progress : uint8_t { kRunning, kWaiting, kReturned, kThrew };

  // A replica's own thread writes these while it holds its lane's turn. Whoever decides reads them while all are at
  // rest; they are atomic only for report_stall, which looks at any time.
  struct alignas(64) Replica {
    std::atomic<Progress> progress{Progress::kReturned};
    std::atomic<const char*> at{""};   // what() of the last meeting
    std::atomic<int64_t> meetings{0};  // how many it has come to in this run
    Meeting* meeting = nullptr;
    std::exception_ptr error;
    Turn turn;
    std::thread thread;  // none for replica 0

    bool ended() const {
      const Progress now = progress.load(std::memory_order_relaxed);
      return now == Progress::kReturned || now == Progress::kThrew;
    }
  };

  void thread_main(int64_t replica);
  /// Runs the body and arrives; gives whether this thread still holds its lane.
  bool run_body(int64_t replica);
  /// Passes the lane to the next replica of this round, or as the last of it completes the round. Gives whether
  /// `replica` holds the lane again at once.
  bool arrive(int64_t replica);
  /// Meets the other lanes and carries the meeting out. Gives whether the run is over.
  bool complete_round(int lane);
  /// On one thread, all replicas at rest: what follows from where they are.
  void decide();
  int64_t next_in_lane(int lane, int64_t from) const;  // -1: none
  std::string who_did_what() const;
  void report_stall() const;

  const LanePlan plan_;
  std::vector<TensorCacheLease> caches_;  // one for each lane: its replicas' tensors, and what run() makes on lane 0
  std::vector<Replica> replicas_;
  LaneBarrier barrier_;
  Epoch starts_;  // advanced by run() and by the destructor
  std::atomic<bool> ending_{false};

  // Written by run() before starts_ advances, read by the replica threads after.
  const FunctionRef<void(int64_t)>* body_ = nullptr;
  CallerState caller_;
  uint32_t run_number_ = 0;
  bool runs_are_brief_ = false;  // the last one that was timed

  // Written by one thread while all lanes are in the barrier, read by all after it.
  uint32_t ended_run_ = 0;
  bool stopping_ = false;
  Meeting* leading_ = nullptr;
  int phases_ = 0;  // of the leading meeting
  std::exception_ptr verdict_;
  std::vector<Meeting*> meetings_;

  std::vector<std::exception_ptr> lane_errors_;  // each written by its lane in a phase, read in the barrier after it
  std::vector<std::exception_ptr> errors_;       // the result of run()
};

}  // namespace lockstep::internal
