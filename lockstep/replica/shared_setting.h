// One number of a library that counts for the whole process, asked for by several at a time.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

namespace lockstep::internal {

/// Sets the number for the length of each request. Requests may overlap in any way: the last one that began counts, and
/// after the last one of all has ended the number is what it was before the first. Any thread.
class SharedSetting {
 public:
  SharedSetting(int (*get)(), void (*set)(int)) : get_(get), set_(set) {}

  void begin(int value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (requests_.empty()) before_ = get_();
    requests_.push_back(value);
    set_if_other(value);
  }
  /// `value` is what begin() was given.
  void end(int value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto own = std::find(requests_.rbegin(), requests_.rend(), value);
    if (own == requests_.rend()) return;
    requests_.erase(std::next(own).base());
    set_if_other(requests_.empty() ? before_ : requests_.back());
  }

 private:
  void set_if_other(int value) const {
    if (get_() != value) set_(value);
  }

  int (*const get_)();
  void (*const set_)(int);
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<int> requests_;  // under way, in the order in which they began
  int before_ = 0;             // the first of them
};

}  // namespace lockstep::internal
