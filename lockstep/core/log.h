// What the library has to say while all is well, and where it goes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class LogLevel { kError, kWarning, kInfo };

/// Receives each line, without a newline. Called under a lock: one line at a time, from any thread.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Sends the library's lines to `sink`, which must not log itself; an empty one restores the default, which prints to
/// standard error what LOCKSTEP_LOG=off|error|warning|info in the environment lets through. Any thread may call it.
void set_log_sink(LogSink sink);

namespace internal {
void log(LogLevel level, const std::string& line);
}  // namespace internal

}  // namespace lockstep
