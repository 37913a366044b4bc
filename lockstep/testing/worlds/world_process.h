// The checks of worlds where an engine has one worker in a process, as MPI has: all processes run the same check at the
// same time, and each has the worker of its index. What threads of one process share, they share by memory that all
// map.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "lockstep/comm/world.h"

namespace lockstep::internal::inline testing {

struct Trial;

/// Thrown out of a check that cannot go on here, whatever the worlds are like.
class NotInThisProcess : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The check goes on in new processes, from this job: a run has failed, and the engine has no other in these.
class NeedsNewProcesses : public NotInThisProcess {
 public:
  explicit NeedsNewProcesses(int64_t job) : NotInThisProcess("the check goes on in new processes"), job_(job) {}
  int64_t job() const { return job_; }

 private:
  int64_t job_;
};

/// The check needs two jobs at a time, where a process has one.
class NeedsTwoJobs : public NotInThisProcess {
 public:
  NeedsTwoJobs() : NotInThisProcess("a process has one job of this engine at a time") {}
};

/// This process, for one check.
class OwnProcess {
 public:
  /// What all processes map; each number is zero when they start.
  using Numbers = std::span<std::atomic<uint64_t>>;

  struct Setup {
    int64_t index = 0;
    int64_t processes = 2;
    /// The world of this process's worker in a new job.
    std::function<std::shared_ptr<World>(std::chrono::milliseconds patience)> make = {};
    Numbers numbers = {};
    /// From 0: the jobs before this one were made in earlier processes.
    int64_t first_job = 0;
  };
  explicit OwnProcess(Setup setup) : setup_(std::move(setup)) {}

  int64_t index() const { return setup_.index; }

  /// Waits for the other processes, and gives this worker's world; null for a job of earlier processes. Throws
  /// NeedsNewProcesses and NeedsTwoJobs.
  std::shared_ptr<World> begin_job(std::chrono::milliseconds patience);
  void end_job() { has_job_ = false; }
  /// Waits until all processes have come here.
  void meet();

  /// A run has failed: this engine has no other one in these processes. Any thread may call it.
  void note_failed_run() { number(kFailedRun) = 1; }
  /// The check has failed in this process: no other one waits for it. Any thread may call it.
  void note_failed_check() { number(kFailedCheck) = 1; }

  /// The next number that no other part of the check has. All processes take them in the same order.
  std::size_t take_number();
  std::atomic<uint64_t>& number(std::size_t which) const { return setup_.numbers[which]; }
  /// Waits until the number is at least `least`. Throws where the check fails elsewhere.
  void wait(std::size_t which, uint64_t least) const;

 private:
  static constexpr std::size_t kFailedRun = 0;
  static constexpr std::size_t kFailedCheck = 1;

  const Setup setup_;
  std::size_t taken_ = 2;
  int64_t jobs_ = 0;
  bool has_job_ = false;
};

/// As std::latch, for workers that are threads and for those that are processes.
class Latch {
 public:
  Latch(const Trial& trial, int64_t count);

  void count_down();
  void wait();

 private:
  std::optional<std::latch> threads_;
  const std::shared_ptr<OwnProcess> process_;  // null where workers are threads
  std::size_t number_ = 0;
  const uint64_t count_;
};

/// The earliest of the times that the workers give.
class Earliest {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit Earliest(const Trial& trial);

  void add(Time time);
  /// Of those that were given until now.
  Time get() const;

 private:
  std::atomic<uint64_t> own_ = 0;  // 0: none
  const std::shared_ptr<OwnProcess> process_;
  std::size_t number_ = 0;
  std::atomic<uint64_t>& time() { return process_ ? process_->number(number_) : own_; }
  const std::atomic<uint64_t>& time() const { return process_ ? process_->number(number_) : own_; }
};

}  // namespace lockstep::internal::testing
