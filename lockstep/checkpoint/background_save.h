// The thread that writes a checkpoint while training goes on, and its error.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/folder/shared_save.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// One job at a time, on a thread of its own. The thread touches nothing but its job, the seconds, and what mutex_
/// guards. A job must not make a call of all workers.
class BackgroundSave {
 public:
  explicit BackgroundSave(const Strategy& strategy) : strategy_(strategy) {}
  /// Waits for the job; where the run has failed, some seconds at most for the other workers' shares. The log has its
  /// error, which nobody else will ask for.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// The deadline of the next job. Its writing waits for other workers no longer than that.
  std::shared_ptr<const Deadline> new_deadline();
  /// Starts a job; there must be none. `worker` is this one, for the error of a thread that cannot be started.
  void start(int64_t worker, std::function<void()> job);

  /// All workers: returns when the jobs of all have ended. What happens to other workers is noticed meanwhile, as in
  /// every call. The log says every 30 s which workers still write; after 10 minutes that is a PeerError, and the
  /// next call waits again.
  void let_end();
  /// All workers: let_end(), and then throws the first reason why a job failed: the worker's own error there, and a
  /// PeerError with its text on the others.
  void wait();
  /// Ends the job as soon as that is possible, and forgets its error.
  void give_up();
  /// The job must not make a checkpoint any more. Returns when it has ended, after some seconds at the latest.
  void abandon();

  /// Any thread.
  void set_last_seconds(double seconds) { seconds_ = seconds; }
  double last_seconds() const { return seconds_; }

 private:
  bool has_ended_within(std::chrono::milliseconds time);
  /// Of all workers, which jobs have not ended after that time.
  std::vector<int64_t> at_work_after(std::chrono::milliseconds time);
  void join();
  bool is_in_child();

  const Strategy& strategy_;
  const ProcessMark process_;
  std::shared_ptr<Deadline> deadline_ = std::make_shared<Deadline>();  // of the last job
  std::atomic<double> seconds_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = true;     // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_, while the thread runs
  std::thread thread_;
};

}  // namespace lockstep::internal::checkpoint
