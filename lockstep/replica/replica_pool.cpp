#include "lockstep/replica/replica_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/pinning.h"

namespace lockstep::internal {

namespace {

// Pinning the caller costs about 5 us in two system calls; below this a run goes without. Reading a clock counts too
// beside an empty run, so only some runs are timed.
constexpr std::chrono::microseconds kBriefRun{500};
constexpr uint32_t kRunsPerTiming = 16;

const auto kIdle = [] {};  // between runs nobody is late

}  // namespace

ReplicaPool::ReplicaPool(LanePlan plan)
    : plan_(std::move(plan)),
      caches_(static_cast<std::size_t>(plan_.num_lanes())),
      replicas_(static_cast<std::size_t>(plan_.num_replicas)),
      barrier_(plan_.num_lanes(), plan_.oversubscribed() ? kImpatient : kPatientInRun),
      meetings_(static_cast<std::size_t>(plan_.num_replicas)),
      lane_errors_(static_cast<std::size_t>(plan_.num_lanes())),
      errors_(static_cast<std::size_t>(plan_.num_replicas)) {
  for (int64_t r = 1; r < plan_.num_replicas; ++r) {
    replicas_[r].thread = std::thread([this, r] { thread_main(r); });
  }
}

ReplicaPool::~ReplicaPool() {
  ending_.store(true, std::memory_order_relaxed);
  starts_.advance();
  for (Replica& replica : replicas_) {
    if (!replica.thread.joinable()) continue;
    replica.turn.give();
    replica.thread.join();
  }
}

std::span<const std::exception_ptr> ReplicaPool::run(FunctionRef<void(int64_t)> body) {
  using Clock = std::chrono::steady_clock;
  const bool timed = run_number_ % kRunsPerTiming == 0;
  const Clock::time_point start = timed ? Clock::now() : Clock::time_point();
  {
    const ThreadCacheScope cache(caches_[0].cache());
    const ComputeSettingsGuard settings(plan_.compute);
    caller_.capture();
    const CallerPin pin(plan_, runs_are_brief_);
    body_ = &body;
    ++run_number_;
    stopping_ = false;
    for (Replica& replica : replicas_) {
      replica.progress.store(Progress::kRunning, std::memory_order_relaxed);
      replica.meetings.store(0, std::memory_order_relaxed);
    }
    starts_.advance();
    // Once all lanes are through, the last replica of lane 0 gives the lane back to this thread.
    if (!run_body(0)) replicas_[0].turn.take([this] { report_stall(); });
    caller_.restore();
  }
  if (timed) runs_are_brief_ = Clock::now() - start < kBriefRun;
  for (std::size_t r = 0; r < replicas_.size(); ++r) errors_[r] = std::exchange(replicas_[r].error, nullptr);
  return errors_;
}

void ReplicaPool::thread_main(int64_t r) {
  const int lane = plan_.lane_of(r);
  const bool opens_lane = lane > 0 && r == plan_.first_replica_of(lane);  // lane 0 is opened by run()
  pin_replica_thread(plan_, lane);
  const ThreadCacheScope cache(caches_[lane].cache());
  set_compute_settings_of_this_thread(plan_.compute);
  const Patience patience = plan_.oversubscribed() ? kImpatient : kPatientBetweenRuns;
  for (uint32_t seen = 0;;) {
    if (opens_lane) {
      starts_.wait_while(seen, patience, kIdle);
      seen = starts_.now();
    } else {
      replicas_[r].turn.take(kIdle);
    }
    if (ending_.load(std::memory_order_relaxed)) return;
    ensure_intra_op_threads_of_this_thread(plan_.compute.threads);
    caller_.enter();
    const bool holds_lane = run_body(r);
    if (opens_lane && !holds_lane) replicas_[r].turn.take(kIdle);
  }
}

bool ReplicaPool::run_body(int64_t r) {
  Replica& self = replicas_[r];
  Progress end = Progress::kThrew;
  try {
    (*body_)(r);
    end = Progress::kReturned;
  } catch (const ReplicaStopped&) {
  } catch (...) {
    self.error = std::current_exception();
  }
  self.progress.store(end, std::memory_order_relaxed);
  return arrive(r);
}

void ReplicaPool::meet(int64_t r, Meeting& meeting) {
  if (stopping_) throw ReplicaStopped{};
  Replica& self = replicas_[r];
  self.meeting = &meeting;
  self.at.store(meeting.what(), std::memory_order_relaxed);
  self.meetings.store(self.meetings.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  self.progress.store(Progress::kWaiting, std::memory_order_relaxed);
  if (!arrive(r)) self.turn.take([this] { report_stall(); });
  self.progress.store(Progress::kRunning, std::memory_order_relaxed);
  if (verdict_) std::rethrow_exception(verdict_);
}

bool ReplicaPool::arrive(int64_t r) {
  const int lane = plan_.lane_of(r);
  int64_t next = next_in_lane(lane, r + 1);
  if (next < 0) {
    bool over;
    do {  // a lane whose replicas have all ended still takes part in the others' rounds
      over = complete_round(lane);
      next = over ? plan_.first_replica_of(lane) : next_in_lane(lane, plan_.first_replica_of(lane));
    } while (next < 0);
  }
  if (next == r) return true;
  replicas_[next].turn.give();
  return false;
}

int64_t ReplicaPool::next_in_lane(int lane, int64_t from) const {
  const int64_t end = plan_.first_replica_of(lane) + plan_.replicas_per_lane();
  for (int64_t r = from; r < end; ++r) {
    if (!replicas_[r].ended()) return r;
  }
  return -1;
}

bool ReplicaPool::complete_round(int lane) {
  const uint32_t run = run_number_;  // read before the barrier: after the last one the caller may start the next run
  const auto stalled = [this] { report_stall(); };
  barrier_.arrive([this] { decide(); }, stalled);
  // The leading meeting lives on a stack: without phases its replica may go on, and away, before this lane looks.
  Meeting* const leading = leading_;
  const int phases = phases_;
  for (int phase = 0; phase < phases && !verdict_; ++phase) {
    try {
      leading->work(phase, lane, plan_.num_lanes());
    } catch (...) {
      lane_errors_[lane] = std::current_exception();
    }
    const auto between = [&] {
      for (std::exception_ptr& error : lane_errors_) {
        if (error && !verdict_) verdict_ = error;
        error = nullptr;
      }
      if (verdict_) return;
      try {
        leading->between(phase);
      } catch (...) {
        verdict_ = std::current_exception();
      }
    };
    barrier_.arrive(between, stalled);
  }
  return ended_run_ == run;
}

void ReplicaPool::decide() {
  leading_ = nullptr;
  phases_ = 0;
  verdict_ = nullptr;
  std::size_t ended = 0;
  bool threw = false;
  bool alike = true;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    const Replica& replica = replicas_[r];
    ended += replica.ended() ? 1 : 0;
    threw = threw || replica.progress.load(std::memory_order_relaxed) == Progress::kThrew;
    meetings_[r] = replica.meeting;
  }
  if (ended == replicas_.size()) {
    ended_run_ = run_number_;
    return;
  }
  if (threw) {
    stopping_ = true;
    verdict_ = std::make_exception_ptr(ReplicaStopped{});
    return;
  }
  if (ended > 0) {
    alike = false;
  } else {
    const Meeting& first = *meetings_.front();
    alike = std::all_of(meetings_.begin() + 1, meetings_.end(), [&](const Meeting* other) {
      return (other->what() == first.what() || std::strcmp(other->what(), first.what()) == 0) &&
             other->signature() == first.signature();
    });
  }
  if (!alike) {
    stopping_ = true;
    verdict_ = std::make_exception_ptr(UsageError(
        fmt::format("replicas do not meet in the same order: {}", who_did_what()),
        "every replica must make the same calls, in the same order, with the same shapes, dtypes and options: "
        "take them out of branches that differ between replicas"));
    return;
  }
  try {
    meetings_.front()->prepare(meetings_);
    leading_ = meetings_.front();
    phases_ = leading_->num_phases();
  } catch (...) {
    verdict_ = std::current_exception();
  }
}

std::string ReplicaPool::who_did_what() const {
  std::vector<std::string> deeds;
  for (const Replica& replica : replicas_) {
    const int64_t count = replica.meetings.load(std::memory_order_relaxed);
    deeds.push_back(replica.ended() ? fmt::format("returned after {} meeting{}", count, count == 1 ? "" : "s")
                                    : fmt::format("came to {} as its meeting {}", replica.meeting->describe(), count));
  }
  std::string text;
  for (std::size_t r = 0; r < deeds.size();) {
    std::size_t next = r + 1;
    while (next < deeds.size() && deeds[next] == deeds[r]) ++next;
    text += fmt::format("{}replica{} {}", r == 0 ? "" : ", ", next - r > 1 ? "s" : "",
                        next - r > 1 ? fmt::format("{} to {}", r, next - 1) : fmt::format("{}", r));
    text += " " + deeds[r];
    r = next;
  }
  return text;
}

void ReplicaPool::report_stall() const {
  std::string waiting;
  std::string missing;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    const Replica& replica = replicas_[r];
    if (replica.ended()) continue;
    const bool waits = replica.progress.load(std::memory_order_relaxed) == Progress::kWaiting;
    std::string& list = waits ? waiting : missing;
    const int64_t count = replica.meetings.load(std::memory_order_relaxed);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", r);
    if (waits) list += fmt::format(" (at {}, meeting {})", replica.at.load(std::memory_order_relaxed), count);
  }
  log(LogLevel::kWarning, fmt::format("replicas wait for {} s or longer: waiting {}; not there yet: {}", kStallSeconds,
                                      waiting.empty() ? "none" : waiting, missing.empty() ? "none" : missing));
}

}  // namespace lockstep::internal
