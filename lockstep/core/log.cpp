#include "lockstep/core/log.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

std::mutex& sink_mutex() {
  static std::mutex mutex;
  return mutex;
}

LogSink& sink() {  // guarded by sink_mutex()
  static LogSink current;
  return current;
}

constexpr const char* kVariable = "LOCKSTEP_LOG";

/// The level that a text names; nothing where it names no level.
std::optional<int> level_of(std::string_view text) {
  if (text.empty() || text == "info") return static_cast<int>(LogLevel::kInfo);
  if (text == "warning") return static_cast<int>(LogLevel::kWarning);
  if (text == "error") return static_cast<int>(LogLevel::kError);
  if (text == "off") return -1;
  return std::nullopt;
}

std::string_view text_or_empty(const char* text) { return text != nullptr ? text : ""; }

}  // namespace

void set_log_sink(LogSink new_sink) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  sink() = std::move(new_sink);
}

int internal::log_setting(const char* text) {
  if (const auto level = level_of(text_or_empty(text))) return *level;
  throw UsageError("LS-ENVIRONMENT", fmt::format("{} is '{}'", kVariable, text),
                   "set it to off, error, warning or info, or leave it out for info");
}

void internal::check_log_setting() { log_setting(std::getenv(kVariable)); }

void internal::log(LogLevel level, const std::string& line) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  if (sink()) {
    sink()(level, line);
    return;
  }
  const int highest = level_of(text_or_empty(std::getenv(kVariable))).value_or(static_cast<int>(LogLevel::kInfo));
  if (static_cast<int>(level) > highest) return;
  static constexpr const char* kNames[] = {"error", "warning", "info"};
  std::fprintf(stderr, "lockstep %s: %s\n", kNames[static_cast<int>(level)], line.c_str());
}

}  // namespace lockstep
