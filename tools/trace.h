// `lockstep trace FILE`: says in words where the time of a trace went.
#pragma once

#include <string>

namespace lockstep::tools {

/// Prints the summary of a file that Trace has written; gives the exit code. A DataError for a file that is none.
int show_trace(const std::string& file);

}  // namespace lockstep::tools
