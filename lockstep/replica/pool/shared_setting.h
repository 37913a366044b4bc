// A number that a library has once for the whole process, and that several requests set at the same time.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

namespace lockstep::internal::inline replica {

/// Sets the number for the length of each request. Requests may overlap in any way: the one that began last counts, and
/// after all have ended the number is again what it was before the first. Any thread may call.
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
  int before_ = 0;             // the number before the first of them
};

}  // namespace lockstep::internal::replica
