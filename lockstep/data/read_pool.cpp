#include "lockstep/data/read_pool.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process/thread_limits.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/data/stages/stage_times.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/pool/cores.h"

namespace lockstep::internal::inline data {

struct ReadingScope::Settings {
  const ComputeSettingsGuard compute{ComputeSettings{}};
  const at::NoGradGuard no_grad;
};

ReadingScope::ReadingScope() : settings_(std::make_unique<Settings>()) {}
ReadingScope::~ReadingScope() = default;

int64_t reading_threads(const char* option, int64_t asked, int64_t cores) {
  constexpr int64_t kMost = 1024;
  if (asked < 0 || asked > kMost) {
    throw UsageError("LS-OPTION", fmt::format("{} is {}", option, asked),
                     fmt::format("give 1 to {}, or 0 to let the library choose", kMost));
  }
  return asked > 0 ? asked : std::max<int64_t>(cores, 1);
}

int64_t mapping_threads(int64_t asked) {
  return reading_threads("MapOptions::threads", asked, static_cast<int64_t>(cores_of_this_process().size()));
}

/// The tasks of one run(). It lives until the last thread that has seen it lets go.
struct ReadPool::Job {
  Job(int64_t all, FunctionRef<void(int64_t)> each) : count(all), task(each) {}

  /// Takes tasks until none is left; returns when those that it took have ended. They count for the stage `place`.
  void help(const StageReading::Place& place) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      std::exception_ptr failure;
      try {
        const StageReading reading(place);  // ends before the task does: then the stage's times may be gone
        task(i);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (failure && (!error || i < failed)) {
        error = std::move(failure);
        failed = i;
      }
      if (++ended == count) all_ended.notify_all();
    }
  }

  const int64_t count;
  const FunctionRef<void(int64_t)> task;
  const StageReading::Place caller = StageReading::here();
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable all_ended;
  int64_t ended = 0;         // guarded by mutex
  int64_t failed = 0;        // guarded by mutex
  std::exception_ptr error;  // of task `failed`; guarded by mutex
};

void ReadPool::run(int64_t count, FunctionRef<void(int64_t)> task) {
  const ReadingScope scope;
  if (count <= 1 || threads_wanted_ == 0 || process_.is_in_child()) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const auto job = std::make_shared<Job>(count, task);
  {
    const std::lock_guard<std::mutex> lock(sync_->mutex);
    if (!threads_) start();
    jobs_.push_back(job);
  }
  sync_->changed.notify_all();
  job->help({});  // it counts already
  {
    const std::lock_guard<std::mutex> lock(sync_->mutex);
    std::erase(jobs_, job);
  }
  const StageScope waits = StageScope::waiting();
  std::unique_lock<std::mutex> lock(job->mutex);
  job->all_ended.wait(lock, [&] { return job->ended == job->count; });
  if (job->error) std::rethrow_exception(job->error);
}

/// Where a thread cannot be started, the pool works with fewer.
void ReadPool::start() {
  warm_up_math();
  threads_ = std::make_unique<std::vector<std::thread>>();
  try {
    for (int64_t i = 0; i < threads_wanted_; ++i) threads_->emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    return;
  }
}

void ReadPool::work() {
  const ReadingScope scope;
  std::unique_lock<std::mutex> lock(sync_->mutex);
  while (true) {
    sync_->changed.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const std::shared_ptr<Job> job = jobs_.front();
    lock.unlock();
    job->help(job->caller);
    lock.lock();
    std::erase(jobs_, job);
  }
}

ReadPool::~ReadPool() {
  if (!threads_) return;
  if (process_.is_in_child()) {
    static_cast<void>(sync_.release());
    static_cast<void>(threads_.release());  // they exist in the parent only
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(sync_->mutex);
    ends_ = true;
  }
  sync_->changed.notify_all();
  for (std::thread& thread : *threads_) thread.join();
}

}  // namespace lockstep::internal::data
