// A save that several workers write together, each its share of the pieces, into a folder that all of them see. They
// tell each other by files how far they are, because their writing threads take part in no call of all workers.
//
//   each worker   holds its mark, a file that is locked: the lock ends with its process
//   the chief     makes the files with tensors, and writes its pieces
//   the others    wait for these files, write and sync their pieces, and leave a record
//   the chief     waits for the records, then writes the manifest
//
// A record is the list of the checksums of a worker's pieces. Who waits looks at the mark of the worker that it waits
// for: where nobody holds it, and what that worker should have left is not there, it has failed. The folder is the only
// channel, so it works on every file system that has locks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/folder/write_pieces.h"

namespace lockstep::internal::inline checkpoint {

/// The code of the PeerErrors of a worker that waits for another one. They are never the first reason.
inline constexpr const char* kShareCode = "LS-CHECKPOINT-SHARE";

/// Until when a writing thread may wait for other workers. Set by the thread that wants the save to end.
class Deadline {
 public:
  void set_in(std::chrono::milliseconds time) {
    at_ = (std::chrono::steady_clock::now() + time).time_since_epoch().count();
  }
  /// The save must not become a checkpoint any more: what it reads may change while it is written.
  void abandon() {
    is_abandoned_ = true;
    set_in(std::chrono::milliseconds(0));
  }
  /// A PeerError where the save was abandoned.
  void require_wanted(const std::filesystem::path& folder) const;
  bool is_over() const { return std::chrono::steady_clock::now().time_since_epoch().count() >= at_; }

 private:
  std::atomic<std::chrono::steady_clock::rep> at_{std::chrono::steady_clock::duration::max().count()};
  std::atomic<bool> is_abandoned_{false};
};

/// One worker's part in such a save. Made on the thread that saves, used on the one that writes.
class SharedSave {
 public:
  /// Takes this worker's mark. `directory` is the folder around the checkpoint's, `number` one that no other save has,
  /// `writers` are the workers that write, with the chief first, and `index` is this one's place among them.
  SharedSave(Files& files, std::filesystem::path directory, uint64_t number, std::vector<int64_t> writers,
             std::size_t index, std::shared_ptr<const Deadline> deadline);

  uint64_t number() const { return number_; }
  Share share(const WritePlan& plan) const { return share_of(plan, static_cast<int64_t>(index_), num_writers()); }

  /// Of the others: writes `mine` into the files that the chief makes in `folder`, and leaves the record. A PeerError
  /// where the chief has ended the save, or this worker has abandoned it, and the DataErrors of the disk.
  void write(const std::filesystem::path& folder, const WritePlan& plan, const PlannedBytes& mine);

  /// Of the chief: returns when all others have written and synced their pieces, and gives their checksums. A PeerError
  /// where one of them will not.
  void wait_for_others(const std::filesystem::path& folder, const WritePlan& plan, const GiveChecksums& give) const;
  /// Of the chief, at the end.
  void end();

  /// Removes what saves have left in `directory`, as far as that is possible. Nobody may save there meanwhile.
  static void clean(Files& files, const std::filesystem::path& directory);

 private:
  int64_t num_writers() const { return static_cast<int64_t>(writers_.size()); }
  std::filesystem::path path(WriterFile file, std::size_t index) const;
  /// Returns when `is_there()`. Throws where writer `index` has ended without that.
  void wait_for(std::size_t index, const std::filesystem::path& folder, const std::function<bool()>& is_there) const;
  void give_mark_back();

  Files& files_;
  const std::filesystem::path directory_;
  const uint64_t number_;
  const std::vector<int64_t> writers_;
  const std::size_t index_;
  const std::shared_ptr<const Deadline> deadline_;
  // Where the save fails, the lock ends and its file stays. By that the others see that this worker has failed.
  std::unique_ptr<FileLock> mark_;
};

}  // namespace lockstep::internal::checkpoint
