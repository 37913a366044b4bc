#include "lockstep/core/log.h"

#include <cstdio>
#include <initializer_list>
#include <mutex>
#include <string>

#include "lockstep/core/switches.h"

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
constexpr int kInfo = static_cast<int>(LogLevel::kInfo);

/// The words of the switch; any static initialiser may log.
const std::initializer_list<internal::SwitchWord<int>>& levels() {
  static const std::initializer_list<internal::SwitchWord<int>> all = {
      {"off", -1},
      {"error", static_cast<int>(LogLevel::kError)},
      {"warning", static_cast<int>(LogLevel::kWarning)},
      {"info", kInfo}};
  return all;
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  sink() = std::move(new_sink);
}

int internal::log_setting(std::string_view text) { return choice_in(kVariable, text, levels(), kInfo, " for info"); }

void internal::check_log_setting() { log_setting(switch_text(kVariable)); }

void internal::log(LogLevel level, const std::string& line) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  if (sink()) {
    sink()(level, line);
    return;
  }
  const int highest = word_in(switch_text(kVariable), levels()).value_or(kInfo);
  if (static_cast<int>(level) > highest) return;
  static constexpr const char* kNames[] = {"error", "warning", "info"};
  std::fprintf(stderr, "lockstep %s: %s\n", kNames[static_cast<int>(level)], line.c_str());
}

}  // namespace lockstep
