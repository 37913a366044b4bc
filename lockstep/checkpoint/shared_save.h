// A save that several workers write together, each its share of the pieces, into a folder that all of them see. They
// tell each other by files how far they are, because their writing threads take part in no call of all workers.
//
//   each worker   holds its mark, a file that is locked: it ends with its process
//   the chief     makes the files with tensors, and writes its pieces
//   the others    wait for these files, write their pieces into them, sync them, and leave a record with their
//   checksums the chief     waits for the records, and makes the checkpoint valid by its manifest
//
// Who waits looks at the mark of the one that it waits for: where nobody holds it any more, and what it should have
// left is not there, that worker has failed. The folder is the only channel, so it works on every file system that has
// locks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/file_names.h"
#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/write_checkpoint.h"

namespace lockstep::internal {

/// Set by the thread that wants a save to end, and read by the one that writes.
class GiveUp {
 public:
  /// From now on what a writer waits for must come within `patience`.
  void within(std::chrono::milliseconds patience) {
    deadline_ = (std::chrono::steady_clock::now() + patience).time_since_epoch().count();
  }
  bool is_due() const { return std::chrono::steady_clock::now().time_since_epoch().count() >= deadline_; }

 private:
  std::atomic<std::chrono::steady_clock::rep> deadline_{std::chrono::steady_clock::duration::max().count()};
};

/// One worker's part in such a save. Made on the thread that saves, used on the one that writes.
class SharedSave {
 public:
  /// Takes this worker's mark. `directory` is the folder around the checkpoint's, `save` a number that no other save
  /// has, `writers` are the workers that write, with the chief first, and `index` is this one's place among them.
  SharedSave(Files& files, std::filesystem::path directory, uint64_t save, std::vector<int64_t> writers,
             std::size_t index, std::shared_ptr<const GiveUp> give_up);

  uint64_t save() const { return save_; }
  Share share(const WritePlan& plan) const { return share_of(plan, static_cast<int64_t>(index_), num_writers()); }

  /// Of the others: writes `mine` into the files that the chief makes in `folder`, and leaves the record. A DataError
  /// where the chief has ended the save, and those of the disk.
  void write(const std::filesystem::path& folder, const WritePlan& plan, const PlannedBytes& mine);

  /// Of the chief: returns when all others have written and synced their pieces, and gives their checksums. A DataError
  /// where one of them will not.
  void wait_for_others(const WritePlan& plan,
                       const std::function<void(const Share&, const std::vector<std::string>&)>& give) const;
  /// Of the chief, at the end: removes the records.
  void end();

  /// Removes what saves have left in `directory` that were interrupted. Nobody may save there meanwhile.
  static void clean(Files& files, const std::filesystem::path& directory);

 private:
  int64_t num_writers() const { return static_cast<int64_t>(writers_.size()); }
  std::filesystem::path path(WriterFile file, std::size_t index) const;
  /// Returns when `is_there(names in folder)`. Throws where writer `index` has ended without that.
  void wait_for(std::size_t index, const std::filesystem::path& folder,
                const std::function<bool(const std::vector<std::string>&)>& is_there) const;
  bool is_at_work(std::size_t index) const;

  Files& files_;
  const std::filesystem::path directory_;
  const uint64_t save_;
  const std::vector<int64_t> writers_;
  const std::size_t index_;
  const std::shared_ptr<const GiveUp> give_up_;
  std::unique_ptr<FolderLock> mark_;  // let go, where something fails, with its file left behind
};

}  // namespace lockstep::internal
