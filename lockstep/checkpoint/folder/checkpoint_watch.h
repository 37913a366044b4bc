// Which checkpoint of a growing folder comes next for one who follows a run. It decides and does nothing.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"

namespace lockstep::internal::inline checkpoint {

/// Who follows a run reads each checkpoint once, and of several that have come meanwhile only the newest one.
class CheckpointWatch {
 public:
  /// The one to read now; null where there is none that is newer than the last one that was read. `whole` are those of
  /// the folder, from the oldest to the newest. A folder that was empty in between is another run's, and begins anew.
  const FoundCheckpoint* next(const std::vector<FoundCheckpoint>& whole);
  /// It was read.
  void was_read(const FoundCheckpoint& one);
  /// It cannot be read: another one that is newer than the last one takes its place.
  void is_unreadable(const FoundCheckpoint& one);

 private:
  /// In the order in which checkpoints were saved.
  using Place = std::pair<uint64_t, int64_t>;
  static Place place_of(const FoundCheckpoint& one) { return {one.sequence, one.step}; }

  bool has_read_ = false;
  Place last_ = {};
  std::set<Place> unreadable_;
};

}  // namespace lockstep::internal::checkpoint
