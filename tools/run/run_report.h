// What `lockstep run --json` writes: how each worker ended, in each start of the job.
#pragma once

#include <string>
#include <vector>

#include "tools/run/attempt.h"
#include "tools/run/job.h"
#include "tools/run/run.h"

namespace lockstep::tools {

/// One start of all workers of this launcher.
struct AttemptReport {
  AttemptResult result;
  std::string cause = {};  // of the first failure, where something is known of it
  double seconds = 0;      // until the last process had ended
};

struct RunReport {
  std::vector<AttemptReport> attempts = {};
  double seconds = 0;  // pauses included
  int exit_code = 0;
};

/// The report as a JSON object with a newline behind it. Bytes of the workers' output that are no UTF-8 are replaced.
std::string json_of(const RunReport& report, const RunOptions& options, const Job& job);

}  // namespace lockstep::tools
