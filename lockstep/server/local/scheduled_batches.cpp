#include "lockstep/server/local/scheduled_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lockstep/core/error.h"
#include "lockstep/server/local/strategy_gate.h"

namespace lockstep::internal::inline server {

void ScheduledBatches::read(Reading& reading) const {
  if (!reading.at) {
    const lockstep::data::Cursor begin = reading.data.cursor();
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
}

Batch ScheduledBatches::batch(const DistributedDataset& data, int64_t index, int64_t replica) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Reading& reading = readings_.try_emplace(data.identity(), Reading{.data = data, .next = first_}).first->second;
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
  lowest_ = std::max(lowest_, index);
  for (auto& [key, reading] : readings_) {
    const auto end = reading.kept.lower_bound(index);
    if (end == reading.kept.begin()) continue;
    reading.kept.erase(reading.kept.begin(), end);
    if (reading.kept.empty()) reading.data.used();
  }
}

}  // namespace lockstep::internal::server
