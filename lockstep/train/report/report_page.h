// A run's report as a page of HTML: one file that loads nothing.
#pragma once

#include <string>

#include "lockstep/train/report/run_report.h"

namespace lockstep::internal::inline train {

/// The page. It draws without script, in light and dark, and on paper; its policy forbids it to load anything. All
/// texts are escaped. `run` stands in it as JSON, in the element "lockstep-run".
std::string report_page(const RunReport& run);

/// The run that a page carries. Throws a DataError (LS-DATA-FILE) that begins with `what`, where it carries none.
RunReport run_in_page(const std::string& page, const std::string& what);

}  // namespace lockstep::internal::train
