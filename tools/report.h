// `lockstep report`: reports of runs beside each other.
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

struct ReportCommandOptions {
  std::vector<std::string> files = {};  // that html_report() has written
  bool json = false;                    // a JSON object on standard output instead of a table
};

/// Prints a column for each report: how the run ended, its best numbers, its speed, and what of the facts is not equal
/// in all. Gives the exit code. A DataError where a file is missing, or is no report.
int compare_reports(const ReportCommandOptions& options);

}  // namespace lockstep::tools
