#include "lockstep/server/local/scheduled_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lockstep/core/error.h"
#include "lockstep/server/local/strategy_gate.h"

namespace lockstep::internal::inline server {

bool UsedData::is_alike(const lockstep::data::Cursor& other) const {
  lockstep::data::Cursor same_place = other;
  same_place.epoch = place.epoch;
  same_place.position = place.position;
  same_place.stream = place.stream;
  return same_place == place;
}

ScheduledBatches::ScheduledBatches(int64_t first, const std::vector<UsedData>& restored, bool by_number)
    : first_(first), by_number_(by_number), lowest_(by_number ? first : 0) {
  for (const UsedData& one : restored) {
    if (one.data) {
      earlier_.push_back(one);
    } else {
      waiting_.push_back(one.place);
    }
  }
}

ScheduledBatches::Reading& ScheduledBatches::reading_of(const DistributedDataset& data) {
  const auto found = readings_.find(data.identity());
  if (found != readings_.end()) return found->second;
  std::erase_if(earlier_, [&](const UsedData& one) { return one.data->identity() == data.identity(); });
  const UsedData here{.data = data, .place = data.cursor()};
  auto place = std::ranges::find(waiting_, here.place);
  const bool is_new = here.place.epoch == 0 && here.place.position == 0;
  if (place == waiting_.end() && is_new)
    place = std::ranges::find_if(waiting_, [&](const auto& one) { return here.is_alike(one); });
  const bool is_at_zero = by_number_ && is_new && place == waiting_.end();
  if (place != waiting_.end()) {
    data.seek(*place);
    waiting_.erase(place);
  }
  Reading reading{.data = data,
                  .number = readings_.size(),
                  .next = indexes_     ? index_at(data)
                          : is_at_zero ? 0
                                       : first_};
  return readings_.emplace(data.identity(), std::move(reading)).first->second;
}

int64_t ScheduledBatches::index_at(const DistributedDataset& data) const {
  lockstep::data::Cursor begin = data.cursor();
  if (begin.epoch == 0 && begin.position == 0) return 0;
  const auto known = indexes_->find(data.identity());
  if (known != indexes_->end() && known->second <= first_) return known->second;
  begin.epoch = 0;
  begin.position = 0;
  begin.stream = {};
  data.seek(begin);
  return 0;
}

void ScheduledBatches::read(Reading& reading) const {
  if (!reading.at) {
    const lockstep::data::Cursor begin = reading.data.cursor();
    reading.places.emplace(reading.next, begin);
    reading.data.seek(begin);  // an epoch begins where the last seek was
    reading.epoch = begin.epoch;
    reading.at.emplace(reading.data.epoch(reading.epoch).begin());
  } else if (*reading.at != std::default_sentinel) {  // reading may have thrown, and left it at an end
    ++*reading.at;
  }
  for (int empty = 0; *reading.at == std::default_sentinel; ++empty) {
    if (empty == 2) {
      throw DataError("LS-NO-SAMPLES", "a scheduled step asked for a batch of a data set that has none",
                      "give the data set samples, or a smaller .global_batch");
    }
    reading.at.emplace(reading.data.epoch(++reading.epoch).begin());
  }
  // A worker that joins late passes over what others have used.
  if (reading.next >= lowest_) reading.kept.emplace(reading.next, **reading.at);
  ++reading.next;
  // The run keeps account of what was used itself: the data set's own place is that behind what was read.
  reading.data.used();
  reading.places.emplace(reading.next, reading.data.cursor());
  if (indexes_) (*indexes_)[reading.data.identity()] = reading.next;
}

Batch ScheduledBatches::batch(const DistributedDataset& data, int64_t index, int64_t replica) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Reading& reading = reading_of(data);
  const CallerScope task(Caller::kTask);  // what reads is the run, in the step's name
  while (reading.next <= index) read(reading);
  const auto found = reading.kept.find(index);
  if (found == reading.kept.end()) {
    throw InternalError("LS-INTERNAL", fmt::format("batch {} was dropped before its step was decided", index),
                        "please report it");
  }
  return found->second[found->second.first_replica() + replica];
}

void ScheduledBatches::forget_below(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (keep_from_) index = std::min(index, *keep_from_);
  lowest_ = std::max(lowest_, index);
  for (auto& [key, reading] : readings_) {
    reading.kept.erase(reading.kept.begin(), reading.kept.lower_bound(index));
    reading.places.erase(reading.places.begin(), reading.places.lower_bound(std::min(index, reading.next)));
  }
}

void ScheduledBatches::keep_from(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  keep_from_ = index;
}

void ScheduledBatches::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  keep_from_.reset();
}

std::optional<lockstep::data::Cursor> ScheduledBatches::place_of(const DistributedDataset& data, int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = readings_.find(data.identity());
  if (found == readings_.end()) return std::nullopt;
  return place_in(found->second, index);
}

lockstep::data::Cursor ScheduledBatches::place_in(Reading& reading, int64_t index) {
  const CallerScope task(Caller::kTask);
  while (reading.next < index) read(reading);
  const auto place = reading.places.find(index);
  if (place != reading.places.end()) return place->second;
  throw InternalError("LS-INTERNAL", fmt::format("the place of batch {} was dropped before a cut", index),
                      "please report it");
}

void ScheduledBatches::add_others(std::vector<UsedData>& all) const {
  for (const UsedData& one : earlier_) all.push_back({.data = one.data, .place = one.data->cursor()});
  for (const lockstep::data::Cursor& one : waiting_) all.push_back({.place = one});
}

std::vector<UsedData> ScheduledBatches::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<UsedData> all(readings_.size());
  for (const auto& [key, reading] : readings_) all[reading.number] = {.data = reading.data};
  add_others(all);
  return all;
}

std::vector<UsedData> ScheduledBatches::places(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<UsedData> all(readings_.size());
  for (auto& [key, reading] : readings_)
    all[reading.number] = {.data = reading.data, .place = place_in(reading, index)};
  add_others(all);
  return all;
}

}  // namespace lockstep::internal::server
