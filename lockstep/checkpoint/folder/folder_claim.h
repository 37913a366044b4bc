// A manager's hold on its folder: the lock that keeps other jobs away, which workers write there, and of what the file
// system protects nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

class FolderClaim {
 public:
  FolderClaim(Files& files, std::filesystem::path directory, bool all_workers_write, bool requires_protection)
      : files_(files),
        directory_(std::move(directory)),
        all_workers_write_(all_workers_write),
        requires_protection_(requires_protection) {}

  /// Before the first take(), so that a program hears at its start what its file system cannot do: the chief warns of
  /// it or, where protection is required, all workers get the DataError LS-CHECKPOINT-UNPROTECTED. Leaves nothing in
  /// the folder, which need not be there yet. Where nobody may write there, take() finds it out.
  void look_at_protection(const Strategy& strategy);
  /// All workers, while nobody writes: takes the folder for this job, if it is not taken, and finds out who writes into
  /// it. The ClusterError LS-CHECKPOINT-LOCKED where another job has it.
  /// With parameter servers the folder has the number of the run that claimed it last, and an older run is refused too
  /// (LS-CLAIM): one that was stopped for a while, and lost its lock, must not put its state over a newer one.
  void take(const Strategy& strategy);
  /// Of the chief's, on any thread while nobody calls take(): the ClusterError LS-CLAIM where a newer run of the same
  /// job has claimed the folder since.
  void require_newest() const;
  /// The next take() finds out anew who writes.
  void look_again() { knows_writers_ = false; }
  /// The workers that write, with the chief first; the same on all.
  const std::vector<int64_t>& writers() const { return writers_; }

 private:
  /// Whether it was not locked before.
  bool lock_folder();
  /// Gives this run the next number, the first time.
  void number_run();
  void write_number() const;
  void find_writers(const Strategy& strategy, uint64_t number);
  /// Of the chief: what the file system of `folder`, which is there, cannot do.
  void find_protection(const std::filesystem::path& folder);

  Files& files_;
  const std::filesystem::path directory_;
  const bool all_workers_write_;
  const bool requires_protection_;
  std::unique_ptr<FileLock> lock_;  // the chief's
  int64_t epoch_ = 0;               // the chief's: the number of this run; 0: it has none
  std::string run_ = {};            // by which its claim is known
  bool knows_writers_ = false;      // the chief's
  bool knows_protection_ = false;   // the chief's
  std::vector<int64_t> writers_{0};
};

/// What a user is told of a folder of which the file system protects less than it should; empty where nothing is
/// missing.
std::string unprotected_text(const std::filesystem::path& folder, const MissingProtection& missing);

/// A number that no other save has.
uint64_t new_save_number();

}  // namespace lockstep::internal::checkpoint
