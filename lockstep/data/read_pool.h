// Threads that carry out tasks in parallel: those of map(), and those of saves and restores of checkpoints.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/data/mutex_and_condition.h"

namespace lockstep::internal::inline data {

/// A fixed number of threads, which start with the first work and end with the pool. The caller works too, so that work
/// goes on where all threads are busy, and in a forked child, which has none of them. Several threads may call run() at
/// once.
class ReadPool {
 public:
  /// `threads` counts the caller; at least 1.
  explicit ReadPool(int64_t threads) : threads_wanted_(threads - 1) {}
  ~ReadPool();
  ReadPool(const ReadPool&) = delete;
  ReadPool& operator=(const ReadPool&) = delete;

  /// Calls `task(i)` once for each i in [0, count), and returns when all have returned. Throws the exception of the
  /// lowest i whose task threw.
  void run(int64_t count, FunctionRef<void(int64_t)> task);
  int64_t threads() const { return threads_wanted_ + 1; }

 private:
  struct Job;
  void start();
  void work();

  const int64_t threads_wanted_;
  const ProcessMark process_;
  std::unique_ptr<MutexAndCondition> sync_ = std::make_unique<MutexAndCondition>();
  std::deque<std::shared_ptr<Job>> jobs_;  // with tasks that nobody has taken; guarded by sync_
  bool ends_ = false;                      // guarded by sync_
  std::unique_ptr<std::vector<std::thread>> threads_;
};

/// The settings of a thread that makes samples: one intra-op thread, so that results do not depend on the thread, and
/// no gradients.
class ReadingScope {
 public:
  ReadingScope();
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

 private:
  struct Settings;
  std::unique_ptr<Settings> settings_;
};

/// How many threads `asked`, the value of `option`, means: as many as `cores` where it is 0, and at least 1. Throws a
/// UsageError for a number below 0 or above 1024.
int64_t reading_threads(const char* option, int64_t asked, int64_t cores);
/// The same for MapOptions::threads; 0 means one for each core of the process.
int64_t mapping_threads(int64_t asked);

}  // namespace lockstep::internal::data
