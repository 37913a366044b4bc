// What the library has to say while all is well, and where it goes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class LogLevel { kError, kWarning, kInfo };

/// Receives each line, without a newline. Called under a lock: one line at a time, from any thread.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Sends the library's lines to `sink`; an empty one restores the default, which prints warnings and errors, and with
/// LOCKSTEP_LOG=info in the environment everything, to standard error. May be called from any thread.
void set_log_sink(LogSink sink);

namespace internal {
void log(LogLevel level, const std::string& line);
}  // namespace internal

}  // namespace lockstep
