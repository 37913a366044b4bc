// How many steps of a worker count, and where in the log they do: what bounded staleness goes by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// The c-th step of a worker that counts has the index c, from 0.
class WorkerCount {
 public:
  explicit WorkerCount(int64_t count = 0) : count_(count) {}

  int64_t count() const { return count_; }
  /// One more counts. `position` has seen it; 0 where it changed nothing. Of the positions `most` are kept.
  void add(Position position, std::size_t most) {
    if (position > 0) {
      positions_.emplace_back(count_, position);
      while (positions_.size() > std::max<std::size_t>(most, 1)) {
        forgotten_ = positions_.front().second;
        positions_.pop_front();
      }
    }
    ++count_;
  }
  /// Goes on from a higher count, as if steps were there that changed nothing.
  void raise(int64_t count) { count_ = std::max(count_, count); }

  /// The position that has seen the first `steps` of its steps that count. Where it was forgotten, a later one.
  Position position_of(int64_t steps) const {
    for (auto it = positions_.rbegin(); it != positions_.rend(); ++it) {
      if (it->first < steps) return it->second;
    }
    return steps > 0 ? forgotten_ : 0;
  }
  Position last_position() const { return position_of(count_); }

  auto operator<=>(const WorkerCount&) const = default;

 private:
  int64_t count_;
  std::deque<std::pair<int64_t, Position>> positions_;  // of the last ones: index and position
  Position forgotten_ = 0;
};

}  // namespace lockstep::internal::server
