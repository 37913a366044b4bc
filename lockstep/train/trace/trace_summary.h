// Where the time of traced steps went, in numbers and in words.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline train {

/// A slice of a trace, as its file has it.
struct NamedSlice {
  int64_t worker = 0;
  std::string track = {};  // "lane 0 (cpu:0)"
  std::string kind = {};   // "step", "compute", "wait", "meeting", "input"
  std::string name = {};
  double begin = 0;  // microseconds
  double time = 0;   // microseconds
};

/// What one lane did between the begin of its worker's first step and the end of its last one.
struct LaneTimes {
  int64_t worker = 0;
  std::string lane = {};
  double all = 0;                                                      // microseconds, from first to last
  std::map<std::pair<std::string, std::string>, double> by_name = {};  // by kind and name
  double of(std::string_view kind) const;
};

struct TraceSummary {
  int64_t steps = 0;        // on each worker
  double microseconds = 0;  // of a step, from begin to begin, on the mean
  std::vector<LaneTimes> lanes = {};
};

/// Evaluations count as steps do. Without a step, a summary of 0 steps.
TraceSummary summary_of(const std::vector<NamedSlice>& slices);

/// For a reader: a table with a line for each lane, the parts that took most, and what to change.
std::string text_of(const TraceSummary& summary);

}  // namespace lockstep::internal::train
