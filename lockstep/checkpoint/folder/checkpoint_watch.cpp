#include "lockstep/checkpoint/folder/checkpoint_watch.h"

namespace lockstep::internal::inline checkpoint {

const FoundCheckpoint* CheckpointWatch::next(const std::vector<FoundCheckpoint>& whole) {
  if (whole.empty()) {
    has_read_ = false;
    unreadable_.clear();
    return nullptr;
  }
  for (auto one = whole.rbegin(); one != whole.rend(); ++one) {
    const Place place = place_of(*one);
    if (has_read_ && place <= last_) return nullptr;
    if (!unreadable_.contains(place)) return &*one;
  }
  return nullptr;
}

void CheckpointWatch::was_read(const FoundCheckpoint& one) {
  has_read_ = true;
  last_ = place_of(one);
  unreadable_.clear();  // those that are newer are looked at again
}

void CheckpointWatch::is_unreadable(const FoundCheckpoint& one) { unreadable_.insert(place_of(one)); }

}  // namespace lockstep::internal::checkpoint
