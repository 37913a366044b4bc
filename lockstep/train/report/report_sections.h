// The sections of a report, in their order on the page. Each is HTML; one that has nothing to show is empty, unless its
// absence would be a question.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/report/line_chart.h"
#include "lockstep/train/report/run_report.h"

namespace lockstep::internal::inline train {

/// Where the best value of a name was, and what it was.
struct BestValue {
  double value = 0;
  int64_t epoch = 0;  // counted from 0, as in the logs
  int64_t step = 0;
};
/// Over the logs of epochs' ends; `name` as it is there, such as "val_loss". Nothing where no epoch has a finite value.
std::optional<BestValue> best_value(const RunReport& run, const std::string& name);
/// An epoch as people count: the first one is 1, in tables and texts as in the bar of a fit.
inline int64_t shown_epoch(int64_t epoch) { return epoch + 1; }

std::string summary_section(const RunReport& run);   // how it stands, why, and four figures
std::string findings_section(const RunReport& run);  // with cures
std::string curves_section(const RunReport& run, std::vector<LineChart>& charts);
std::string speed_section(const RunReport& run, std::vector<LineChart>& charts);
std::string optimizer_section(const RunReport& run, std::vector<LineChart>& charts);  // and variables
std::string checkpoints_section(const RunReport& run);
std::string facts_section(const RunReport& run);    // what ran
std::string numbers_section(const RunReport& run);  // the logs of all epochs as a table

}  // namespace lockstep::internal::train
