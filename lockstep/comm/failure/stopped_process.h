// Why a process of this host does nothing: a signal or a debugger has stopped it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal::inline comm {

/// "a signal has stopped it" or "process 77 has stopped it, as a debugger does", from the text of /proc/PID/status;
/// empty where the process is not stopped, or where that cannot be read from the text.
std::string stop_in(std::string_view status);
/// The same of a process of this host; empty where there is no such process.
std::string stop_of(int64_t process);

}  // namespace lockstep::internal::comm
