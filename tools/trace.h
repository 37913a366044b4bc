// `lockstep trace FILE`: says in words where the time of a trace went.
#pragma once

#include <string>

namespace lockstep::tools {

/// Prints the summary of a file that Trace has written, in words or as a JSON object; gives the exit code. A DataError
/// for a file that is none.
int show_trace(const std::string& file, bool json);

}  // namespace lockstep::tools
