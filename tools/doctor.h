// `lockstep doctor`: what a program does that is probably a mistake.
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

struct DoctorOptions {
  std::string report = {};  // of a run that has ended; empty: a program is run
  std::string json = {};    // the file that gets the findings as JSON; empty: none
};

/// Prints what `report` says that its run has found, or starts `program`, lets its strategies compare their replicas
/// after every step, and prints what they find. Gives the exit code: 1 where something was found, where the program has
/// failed, and where it has made no strategy. A UsageError where the program cannot be started, a DataError for a file
/// that is no report.
int run_doctor(const DoctorOptions& options, const std::vector<std::string>& program);

}  // namespace lockstep::tools
