// The steps of one epoch as an iterator takes them: read when they are asked for, or ahead, on threads of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/process/forks.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/mutex_and_condition.h"
#include "lockstep/data/stages/stage_times.h"

namespace lockstep::internal::inline data {

/// Gives steps in order. At most `depth` steps are read and not taken, those under way included. Its threads end with
/// it, as soon as what they read has come. Reading ahead moves no cursor.
class StepFeed {
 public:
  /// Reads on `threads` threads, each a step: 1 where the work of several steps must not be done at once. `what` names
  /// the pipeline in the warning that the loop has waited for longer than `patience`, which names its slowest stage
  /// too.
  StepFeed(std::unique_ptr<EpochReader> reader, int64_t depth, int64_t threads, std::string what,
           std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~StepFeed();
  StepFeed(const StepFeed&) = delete;
  StepFeed& operator=(const StepFeed&) = delete;

  /// The next step, or one with `end`. Throws what reading it threw; the feed is of no use then.
  LocalStep next();
  /// Whether this is a forked child, in which the threads do not exist.
  bool is_lost() const { return !threads_.empty() && process_.is_in_child(); }
  /// How many samples more were left out than when this was called before; `all`: since its reader began.
  int64_t newly_skipped(int64_t all) { return all - std::exchange(skipped_, all); }

 private:
  struct Slot {
    LocalStep step;
    std::exception_ptr error;
    bool done = false;
  };
  void start_thread(int64_t i);
  void work(TraceTrack track);
  void wait_for_first(std::unique_lock<std::mutex>& lock);
  LocalStep read_here();
  void warn_of_stall(std::chrono::milliseconds waited) const;
  LocalStep read(const EpochReader::Work& work, TraceTrack track);

  const std::unique_ptr<EpochReader> reader_;
  const std::size_t depth_;
  const std::string what_;
  const std::chrono::milliseconds patience_;
  const ProcessMark process_;
  StageTimes times_;  // since the loop began to wait
  int64_t skipped_ = 0;
  std::unique_ptr<MutexAndCondition> sync_ = std::make_unique<MutexAndCondition>();
  std::deque<std::shared_ptr<Slot>> slots_;  // claimed, in order; guarded by sync_
  bool over_ = false;                        // nothing is claimed any more; guarded by sync_
  bool stops_ = false;                       // guarded by sync_
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::internal::data
