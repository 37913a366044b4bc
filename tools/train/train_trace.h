// The trace of `lockstep train --trace FILE`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/strategy/strategy.h"
#include "lockstep/train/trace/trace.h"

namespace lockstep::tools {

/// Traces some steps of the loop. The first ones of the process are left out, where memory is taken and forms are
/// chosen, unless there are no others. Calls of all workers.
class TrainTrace {
 public:
  /// Without a `file` nothing is traced. The loop makes steps from `begin` to `end`.
  TrainTrace(std::string file, Strategy& strategy, int64_t begin, int64_t end);

  void before_step();
  void after_step();
  /// After the last step, however the loop has ended: what was traced is written.
  void finish();

 private:
  const std::string file_;
  Strategy& strategy_;
  int64_t first_ = 0;  // the steps to trace
  int64_t end_ = 0;
  std::optional<Trace> trace_;
};

}  // namespace lockstep::tools
