// A trace as text: Trace Event JSON, which Perfetto reads ("JSON trace format" in its documentation).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/train/trace/clock_offset.h"

namespace lockstep::internal::inline train {

/// What one worker has recorded, and how its times become the chief's.
struct WorkerTrace {
  int64_t worker = 0;
  std::string host = {};
  std::vector<std::string> lanes = {};  // their devices: "cpu:0"
  std::vector<TraceSlice> slices = {};
  int64_t zero = 0;  // of the chief's clock: it becomes 0 in the file
  // At the begin and at the end of the trace, on this worker's clock; between them the offset is on a straight line.
  int64_t first_time = 0;
  int64_t last_time = 0;
  ClockOffset first = {};
  ClockOffset last = {};
};

/// The worker's events, joined by commas: names of the process and its tracks, then each slice, by the time at which
/// they begin; of two that begin together, the one that ends last. Slices of a track nest, as Perfetto asks: one that
/// overlaps another without lying in it gets a track of its own. Times are microseconds with three decimals. A process
/// has the worker's number, and each track a number that no other track of the file has.
std::string trace_events(const WorkerTrace& trace);

/// The whole file. `notes` are name and text by turns.
std::string trace_document(const std::vector<std::string>& events_of_workers, const std::vector<std::string>& notes);

}  // namespace lockstep::internal::train
