// A manager's hold on its folder: the lock that keeps other jobs away, and which workers write there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/files.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

class FolderClaim {
 public:
  FolderClaim(Files& files, std::filesystem::path directory, bool all_workers_write)
      : files_(files), directory_(std::move(directory)), all_workers_write_(all_workers_write) {}

  /// All workers, while nobody writes: takes the folder for this job, if it is not taken, and finds out who writes into
  /// it. The ClusterError LS-CHECKPOINT-LOCKED where another job has it.
  void take(const Strategy& strategy);
  /// The next take() finds out anew who writes.
  void look_again() { knows_writers_ = false; }
  /// The workers that write, with the chief first; the same on all.
  const std::vector<int64_t>& writers() const { return writers_; }

 private:
  /// Whether it was not locked before.
  bool lock_folder();
  void find_writers(const Strategy& strategy, uint64_t number);

  Files& files_;
  const std::filesystem::path directory_;
  const bool all_workers_write_;
  std::unique_ptr<FileLock> lock_;  // the chief's
  bool knows_writers_ = false;      // the chief's
  std::vector<int64_t> writers_{0};
};

/// A number that no other save has.
uint64_t new_save_number();

}  // namespace lockstep::internal
