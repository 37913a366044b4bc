// What a manager keeps from save to save: the lock of its folder, who writes into it, and the thread that writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/shared_save.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/core/forks.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

/// One checkpoint is written at a time, on a thread of its own. The thread touches nothing but its job, error_, which
/// is read after it was joined, and seconds_.
class CheckpointWriter {
 public:
  CheckpointWriter(Files& files, std::filesystem::path directory, bool all_workers_write)
      : files_(files), directory_(std::move(directory)), all_workers_write_(all_workers_write) {}
  /// Waits for the job. The log has its error, which nobody else will ask for.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// All workers: takes the folder for this job, if it is not taken, and finds out who writes into it. The
  /// ClusterError LS-CHECKPOINT-LOCKED where another job has it.
  void claim(const Strategy& strategy);
  /// The workers that write, with the chief first; the same on all.
  const std::vector<int64_t>& writers() const { return writers_; }
  /// All workers, where several write: this worker's part in a new save; null for a worker that writes nothing.
  std::unique_ptr<SharedSave> new_shared_save(const Strategy& strategy);

  void start(std::function<void()> job);
  /// All workers: throws the error of the job that was started last, on all of them.
  void wait(const Strategy& strategy);

  Snapshot& snapshot() { return snapshot_; }
  /// Any thread.
  void took(double seconds) { seconds_ = seconds; }
  double seconds() const { return seconds_; }

 private:
  bool is_shared() const { return writers_.size() > 1; }
  bool lock_folder();
  void find_writers(const Strategy& strategy, uint64_t number);
  void join();
  void join_and_throw();
  bool is_in_child();

  Files& files_;
  const std::filesystem::path directory_;
  const bool all_workers_write_;
  const ProcessMark mark_;
  std::unique_ptr<FolderLock> lock_;  // the chief's
  std::vector<int64_t> writers_{0};
  Snapshot snapshot_;
  std::shared_ptr<GiveUp> give_up_ = std::make_shared<GiveUp>();  // of the last job
  std::exception_ptr error_;
  std::atomic<double> seconds_{0};
  std::thread thread_;
};

}  // namespace lockstep::internal
