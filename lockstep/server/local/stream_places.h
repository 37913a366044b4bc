// Where workers' own streams are (distribute_to_workers), as far as steps are decided.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/sources/stream_source.h"

namespace lockstep::internal::inline server {

/// A place of one worker's stream.
struct StreamPlace {
  int64_t stream = 0;  // the number of distribute_to_workers() in the program
  int64_t worker = 0;
  lockstep::data::StreamPosition position = {};
};

/// Any thread. What a step has taken counts as used when the step is decided: a cut that leaves the step out has the
/// place before it.
class StreamPlaces {
 public:
  explicit StreamPlaces(const std::vector<StreamPlace>& begin);

  /// Where the worker's reader begins; nothing: at the beginning.
  std::optional<lockstep::data::StreamPosition> begin_of(int64_t stream, int64_t worker) const;
  /// The step has taken an element of the worker's stream, which is at `position` now.
  void took(int64_t stream, int64_t worker, int64_t step, lockstep::data::StreamPosition position);
  void ended(int64_t stream, int64_t worker);
  void decided(int64_t step);
  /// All steps below `step` were.
  void decided_below(int64_t step);

  std::vector<StreamPlace> settled() const;
  /// The same without streams that have ended, which begin anew.
  std::vector<StreamPlace> for_next_run() const;

 private:
  using Key = std::pair<int64_t, int64_t>;  // stream and worker
  struct State {
    std::optional<lockstep::data::StreamPosition> begin, settled;
    std::deque<std::pair<int64_t, lockstep::data::StreamPosition>> open = {};  // by step, as they were taken
    bool has_ended = false;
  };
  mutable std::mutex mutex_;
  std::map<Key, State> states_;  // guarded by mutex_
};

}  // namespace lockstep::internal::server
