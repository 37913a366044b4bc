// The library's log: which lines are printed, and where they go.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class LogLevel { kError, kWarning, kInfo };

/// Receives each line, without a newline. Called under a lock: one line at a time, from any thread.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Sends the library's lines to `sink`, which must not log itself. An empty sink restores the default, which prints to
/// standard error the lines that LOCKSTEP_LOG=off|error|warning|info in the environment lets through. Any thread may
/// call it.
void set_log_sink(LogSink sink);

namespace internal::inline core {
void log(LogLevel level, const std::string& line);

/// The highest level that `text`, the value of LOCKSTEP_LOG, lets through; -1 where it lets none through. An empty
/// text means kInfo. Throws a UsageError for a text other than off, error, warning and info. log() itself cannot
/// fail and treats such a text as info; each strategy checks the variable when it is made.
int log_setting(std::string_view text);
void check_log_setting();
}  // namespace internal::core

}  // namespace lockstep
