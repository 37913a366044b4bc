// What a worker says while it waits for others to come.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

/// Says every ten seconds that the worker still waits, and knows when it has waited long enough.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(std::chrono::milliseconds longest)
      : begin_(Clock::now()), next_(begin_ + kInterval), end_(begin_ + longest) {}

  /// Logs "after 20 s, " and what `text()` returns, where it is time for it.
  template <class Text>
  void tell(const Text& text) {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + kInterval;
    log(LogLevel::kWarning, fmt::format("after {} s, {}", elapsed(), text()));
  }
  /// Seconds, rounded.
  int64_t elapsed() const { return std::chrono::round<std::chrono::seconds>(Clock::now() - begin_).count(); }
  bool is_over(std::chrono::milliseconds grace = {}) const { return Clock::now() >= end_ + grace; }
  Clock::time_point end() const { return end_; }
  /// When there is something to do, though nobody has come.
  Clock::time_point next() const { return std::min(next_, end_); }

 private:
  static constexpr std::chrono::seconds kInterval{10};
  const Clock::time_point begin_;
  Clock::time_point next_;
  const Clock::time_point end_;
};

}  // namespace lockstep::internal::comm
