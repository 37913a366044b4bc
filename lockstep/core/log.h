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

/// The highest level that LOCKSTEP_LOG's `text` lets through, -1 for none; null or empty: kInfo. A UsageError for text
/// that is none of off, error, warning and info. log() itself cannot fail and takes such text for info; each strategy
/// checks the variable as it is made.
int log_setting(const char* text);
void check_log_setting();
}  // namespace internal

}  // namespace lockstep
