#include "lockstep/replica/pool/replica_pool.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/thread_limits.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/pool/pinning.h"
#include "lockstep/replica/step_recorder.h"

namespace lockstep::internal::inline replica {

namespace {

// Holding the caller on a core costs about 5 us in two system calls; a run that is shorter than this goes without.
// Reading a clock costs time too, so only some runs are timed.
constexpr std::chrono::microseconds kBriefRun{500};
constexpr uint32_t kRunsPerTiming = 16;

const auto kIdle = [] {};  // between runs no thread is late

}  // namespace

ReplicaPool::ReplicaPool(LanePlan plan, ReplicaId first, Rounds* rounds)
    : plan_(std::move(plan)),
      first_(first),
      rounds_(rounds),
      cores_(plan_.cores),
      caches_(static_cast<std::size_t>(plan_.num_lanes())),
      replicas_(static_cast<std::size_t>(plan_.num_replicas)),
      barrier_(plan_.num_lanes(), plan_.oversubscribed() ? kImpatient : kPatientInRun),
      meetings_(static_cast<std::size_t>(plan_.num_replicas)),
      arrivals_(static_cast<std::size_t>(plan_.num_replicas)),
      lane_errors_(static_cast<std::size_t>(plan_.num_lanes())),
      errors_(static_cast<std::size_t>(plan_.num_replicas)) {
  start_threads();
}

ReplicaPool::~ReplicaPool() { end_threads(); }

void ReplicaPool::start_threads() {
  warm_up_math();
  for (int64_t r = 1; r < plan_.num_replicas; ++r) {
    try {
      replicas_[r].thread = std::thread([this, r] { thread_main(r); });
    } catch (const std::system_error& error) {
      end_threads();
      throw ClusterError("LS-THREADS",
                         fmt::format("the thread of replica {} of {} could not be started: {}; {}", first_ + r,
                                     plan_.num_replicas, error.code().message(), thread_limits_text()),
                         "raise the limit that is too low, or ask for fewer .replicas");
    }
  }
}

void ReplicaPool::end_threads() {
  if (process_.is_in_child()) return forget_threads();
  ending_.store(true, std::memory_order_relaxed);
  starts_.advance();
  for (Replica& replica : replicas_) {
    if (!replica.thread.joinable()) continue;
    replica.turn.give();
    replica.thread.join();
  }
}

std::span<const std::exception_ptr> ReplicaPool::run(FunctionRef<void(int64_t)> body, int64_t step) {
  using Clock = std::chrono::steady_clock;
  require_threads();
  const uint32_t number = run_number_.load(std::memory_order_relaxed);
  const bool timed = number % kRunsPerTiming == 0;
  const Clock::time_point start = timed ? Clock::now() : Clock::time_point();
  {
    const ThreadCacheScope cache(caches_[0].cache());
    const ComputeSettingsGuard settings(plan_.compute);
    caller_.capture();
    const CallerPin pin(plan_, runs_are_brief_);
    body_ = &body;
    stopping_ = false;
    order_.begin();
    step_ = step;
    for (Replica& replica : replicas_) {
      replica.progress.store(Progress::kNotStarted, std::memory_order_relaxed);
      replica.meetings.store(0, std::memory_order_relaxed);
      replica.stopped = false;
    }
    run_number_.store(number + 1, std::memory_order_relaxed);
    run_began_.store(coarse_now(), std::memory_order_relaxed);
    running_.store(true, std::memory_order_release);
    starts_.advance();
    // When all lanes have ended, the last replica of lane 0 gives the lane back to this thread.
    if (!run_body(0)) take_turn(replicas_[0]);
    running_.store(false, std::memory_order_release);
    caller_.restore();
  }
  if (timed) runs_are_brief_ = Clock::now() - start < kBriefRun;
  bool failed = false;
  bool complete = true;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    complete = complete && replicas_[r].now() == Progress::kReturned;
    errors_[r] = std::exchange(replicas_[r].error, nullptr);
    failed = failed || errors_[r];
  }
  if (!failed && verdict_) {
    errors_.front() = verdict_;
    failed = true;
  }
  if (!complete && !failed) {
    errors_.front() = std::make_exception_ptr(
        InternalError("LS-INTERNAL", "a replica was stopped, and none has failed", "please report it"));
  }
  return errors_;
}

void ReplicaPool::thread_main(int64_t r) {
  const int lane = plan_.lane_of(r);
  const bool opens_lane = lane > 0 && r == plan_.first_replica_of(lane);  // lane 0 is opened by run()
  pin_replica_thread(plan_, lane);
  const ThreadCacheScope cache(caches_[lane].cache());
  set_compute_settings_of_this_thread(plan_.compute);
  const Patience patience = plan_.oversubscribed() ? kImpatient : kPatientBetweenRuns;
  const auto look = [this] { return look_from_first_turn(); };
  for (uint32_t seen = 0;;) {
    if (opens_lane) {
      starts_.wait_while(seen, patience, kIdle);
      seen = starts_.now();
    } else {
      replicas_[r].turn.take_looking(look);
    }
    if (ending_.load(std::memory_order_relaxed)) return;
    sleep_for_good_if_abandoned();
    ensure_intra_op_threads_of_this_thread(plan_.compute.threads);
    caller_.enter();
    const bool holds_lane = run_body(r);
    if (opens_lane && !holds_lane) take_turn(replicas_[r]);
  }
}

void ReplicaPool::take_turn(Replica& self) {
  self.turn.take([this] { stalled(); });
  sleep_for_good_if_abandoned();
}

bool ReplicaPool::run_body(int64_t r) {
  Replica& self = replicas_[r];
  self.progress.store(Progress::kRunning, std::memory_order_relaxed);
  Progress end = Progress::kReturned;
  replica_trace.begin(lane_track(plan_.lane_of(r)), first_ + r);
  try {
    (*body_)(r);
  } catch (...) {
    if (!self.stopped && !self.error) self.error = std::current_exception();
    end = Progress::kFailed;
  }
  if (self.error) end = Progress::kFailed;  // even where the step caught it
  replica_trace.end();
  self.progress.store(end, std::memory_order_relaxed);
  return arrive(r);
}

void ReplicaPool::meet(int64_t r, Meeting& meeting) {
  sleep_for_good_if_abandoned();
  if (StepRecorder* const recorder = StepRecorder::current())
    recorder->refuse(std::string("makes the call ") + meeting.what() + ", which cannot be recorded");
  Replica& self = replicas_[r];
  if (stopping_) stop(self);
  self.meeting = &meeting;
  self.at.store(meeting.what(), std::memory_order_relaxed);
  self.meetings.store(self.meetings.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  self.progress.store(Progress::kWaiting, std::memory_order_relaxed);
  replica_trace.pause();
  if (!arrive(r)) take_turn(self);
  replica_trace.resume(meeting.what());
  self.progress.store(Progress::kRunning, std::memory_order_relaxed);
  if (!stopping_) return;
  if (verdict_) {
    self.error = verdict_;  // it fails the run even if the step catches it
    std::rethrow_exception(verdict_);
  }
  stop(self);
}

void ReplicaPool::stop(Replica& self) {
  self.stopped = true;
  throw ReplicaStopped();
}

bool ReplicaPool::arrive(int64_t r) {
  require_threads();
  const int lane = plan_.lane_of(r);
  int64_t next = next_in_lane(lane, r + 1);
  if (next < 0) {
    bool over;
    do {  // Invariant: every lane takes part in every round, also when all of its replicas have ended
      over = complete_round(lane);
      next = over ? plan_.first_replica_of(lane) : next_in_lane(lane, plan_.first_replica_of(lane));
    } while (next < 0);
  }
  if (next == r) return true;
  replicas_[next].turn.give();
  return false;
}

int64_t ReplicaPool::next_in_lane(int lane, int64_t from) const {
  const int64_t end = plan_.first_replica_of(lane) + plan_.num_replicas_of(lane);
  for (int64_t r = from; r < end; ++r) {
    if (!replicas_[r].ended()) return r;
  }
  return -1;
}

bool ReplicaPool::complete_round(int lane) {
  // Read before the barrier: after the last barrier of a run the caller may start the next run.
  const uint32_t run = run_number_.load(std::memory_order_relaxed);
  const auto on_stall = [this] { stalled(); };
  {
    TraceScope wait("wait for lanes", TraceKind::kWait, lane_track(lane));
    barrier_.arrive(
        [&] {
          wait.end();
          decide(lane);
          carry_out_single_stages(lane);
        },
        on_stall);
  }
  require_threads();  // a stage may have forked
  // Invariant: `stage_` and `stages_` change only while all lanes are in the barrier. This loop tests nothing else: the
  // leading meeting lives on a stack, and after the last stage its replica may go on before this lane looks.
  while (stage_ < stages_.size()) {
    try {
      const TraceScope trace(stages_[stage_].name, TraceKind::kMeeting, lane_track(lane));
      stages_[stage_].carry_out(*meetings_.front(), {meetings_, lane, plan_.num_lanes()});
    } catch (...) {
      lane_errors_[lane] = std::current_exception();
    }
    require_threads();
    TraceScope wait("wait for lanes", TraceKind::kWait, lane_track(lane));
    barrier_.arrive(
        [&] {
          wait.end();
          ++stage_;
          std::exception_ptr first;
          for (std::exception_ptr& error : lane_errors_) {
            if (std::exception_ptr one = std::exchange(error, nullptr); one && !first) first = std::move(one);
          }
          if (first) return fail(std::move(first));
          carry_out_single_stages(lane);
        },
        on_stall);
    require_threads();
  }
  return ended_run_ == run;
}

void ReplicaPool::decide(int lane) {
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    using enum Arrival::State;
    const Replica& replica = replicas_[r];
    const Progress progress = replica.now();
    arrivals_[r] = {progress == Progress::kWaiting    ? kMeeting
                    : progress == Progress::kReturned ? kReturned
                                                      : kFailed,
                    replica.meeting, replica.meetings.load(std::memory_order_relaxed)};
    meetings_[r] = replica.meeting;
  }
  stages_ = {};
  stage_ = 0;
  verdict_ = nullptr;
  const RoundRecord record = record_of(arrivals_);
  if (!rounds_) return decide_from(record, order_.note(record, arrivals_));
  if (!rounds_->failure()) {
    const TraceScope trace("wait for workers", TraceKind::kWait, lane_track(lane));
    tell_workers(record);
  }
  decide_from(record, rounds_->failure());
}

void ReplicaPool::decide_from(const RoundRecord& record, std::exception_ptr error) {
  using enum RoundRecord::State;
  if (record.state == kEnded) {
    verdict_ = std::move(error);
    ended_run_ = run_number_.load(std::memory_order_relaxed);
    return;
  }
  if (record.state == kMeeting && error) return fail(std::move(error));
  if (aborted_.load(std::memory_order_acquire)) return fail(reason_to_abort());
  switch (record.state) {
    case kEnded: break;
    case kMeeting: stages_ = meetings_.front()->stages(); break;
    case kFailed: stopping_ = true; break;
    case kDifferent: fail(different_meetings(arrivals_, first_));
  }
}

void ReplicaPool::tell_workers(const RoundRecord& record) try {
  // A worker that fails before the others have its proposal, or before it has read theirs, cannot tell them.
  rounds_->or_end_run([&] {
    Proposal mine = proposal_of(record, arrivals_, step_);
    std::exception_ptr own;
    for (std::size_t r = 0; r < replicas_.size() && !own; ++r) {
      if (!replicas_[r].error) continue;
      own = replicas_[r].error;
      mine.replica = first_ + static_cast<int64_t>(r);
    }
    if (!own && record.state == RoundRecord::State::kDifferent) own = different_meetings(arrivals_, first_);
    if (!own && aborted_.load(std::memory_order_acquire)) own = reason_to_abort();
    if (own) {
      mine.state = Proposal::State::kFailed;
      mine.detail = message_of(own);
    }
    WorkerPhase phase = rounds_->phase();
    phase.is_meeting = true;
    phase.meeting = record.state == RoundRecord::State::kMeeting ? arrivals_.front().meetings : 0;
    rounds_->set_phase(phase);
    const std::vector<Proposal> all = propose(*rounds_, mine, own);
    if (!own) rounds_->fail(order_.note(record, arrivals_, all));  // equal on all workers
  });
} catch (...) {
  rounds_->fail(std::current_exception());  // or what it was before: the first failure stays
}

void ReplicaPool::carry_out_single_stages(int lane) {
  try {
    for (; stage_ < stages_.size() && stages_[stage_].runs == Stage::Runs::kOnce; ++stage_) {
      const TraceScope trace(stages_[stage_].name, TraceKind::kMeeting, lane_track(lane));
      stages_[stage_].carry_out(*meetings_.front(), {meetings_, 0, plan_.num_lanes()});
    }
  } catch (...) {
    fail(std::current_exception());
  }
  if (!rounds_ || stage_ < stages_.size()) return;
  WorkerPhase phase = rounds_->phase();  // the meeting is over
  phase.is_meeting = false;
  rounds_->set_phase(phase);
}

void ReplicaPool::fail(std::exception_ptr error) {
  verdict_ = std::move(error);
  stopping_ = true;
  stages_ = {};
  stage_ = 0;
}

void ReplicaPool::abort(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(reason_mutex_);
  if (aborted_.load(std::memory_order_relaxed)) return;
  reason_ = reason;
  aborted_.store(true, std::memory_order_release);
}

std::exception_ptr ReplicaPool::reason_to_abort() const {
  const std::lock_guard<std::mutex> lock(reason_mutex_);
  return std::make_exception_ptr(
      PeerError("LS-PEER", reason_, "look at the message of the worker that is named, and start all workers again"));
}

void ReplicaPool::sleep_for_good_if_abandoned() const {
  if (!abandoned_.load(std::memory_order_acquire)) return;
  for (;;) pause();  // until the process has ended
}

}  // namespace lockstep::internal::replica
