#include "lockstep/server/local/stream_places.h"

#include <algorithm>

namespace lockstep::internal::inline server {

using lockstep::data::StreamPosition;

StreamPlaces::StreamPlaces(const std::vector<StreamPlace>& begin) {
  for (const StreamPlace& one : begin) {
    states_[{one.stream, one.worker}] = {.begin = one.position, .settled = one.position};
  }
}

std::optional<StreamPosition> StreamPlaces::begin_of(int64_t stream, int64_t worker) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = states_.find({stream, worker});
  return found == states_.end() ? std::nullopt : found->second.begin;
}

void StreamPlaces::took(int64_t stream, int64_t worker, int64_t step, StreamPosition position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& open = states_[{stream, worker}].open;
  if (!open.empty() && open.back().first == step) {
    open.back().second = std::move(position);
  } else {
    open.emplace_back(step, std::move(position));
  }
}

void StreamPlaces::ended(int64_t stream, int64_t worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  states_[{stream, worker}].has_ended = true;
}

void StreamPlaces::decided(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, state] : states_) {
    const auto last =
        std::find_if(state.open.rbegin(), state.open.rend(), [&](const auto& o) { return o.first == step; });
    if (last == state.open.rend()) continue;
    state.settled = std::move(last->second);
    state.open.erase(state.open.begin(), last.base());
  }
}

void StreamPlaces::decided_below(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, state] : states_) {
    for (; !state.open.empty() && state.open.front().first < step; state.open.pop_front())
      state.settled = std::move(state.open.front().second);
  }
}

std::vector<StreamPlace> StreamPlaces::settled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StreamPlace> places;
  for (const auto& [key, state] : states_) {
    if (state.settled) places.push_back({key.first, key.second, *state.settled});
  }
  return places;
}

std::vector<StreamPlace> StreamPlaces::for_next_run() const {
  std::vector<StreamPlace> places = settled();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(places, [&](const StreamPlace& one) { return states_.at({one.stream, one.worker}).has_ended; });
  return places;
}

}  // namespace lockstep::internal::server
