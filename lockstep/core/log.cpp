#include "lockstep/core/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

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

/// LOCKSTEP_LOG: "off", "error", "warning" or "info" (the default).
int verbosity() {
  const char* text = std::getenv("LOCKSTEP_LOG");
  const std::string level = text ? text : "info";
  if (level == "off") return -1;
  if (level == "error") return static_cast<int>(LogLevel::kError);
  if (level == "warning") return static_cast<int>(LogLevel::kWarning);
  return static_cast<int>(LogLevel::kInfo);
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  sink() = std::move(new_sink);
}

void internal::log(LogLevel level, const std::string& line) {
  std::lock_guard<std::mutex> lock(sink_mutex());
  if (sink()) {
    sink()(level, line);
    return;
  }
  if (static_cast<int>(level) > verbosity()) return;
  static constexpr const char* kNames[] = {"error", "warning", "info"};
  std::fprintf(stderr, "lockstep %s: %s\n", kNames[static_cast<int>(level)], line.c_str());
}

}  // namespace lockstep
