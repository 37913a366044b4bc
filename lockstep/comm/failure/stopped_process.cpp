#include "lockstep/comm/failure/stopped_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace lockstep::internal::inline comm {

namespace {

/// What stands after "NAME:" at the beginning of a line; empty where there is none.
std::string_view value_of(std::string_view status, std::string_view name) {
  for (std::size_t at = 0; at < status.size();) {
    const std::size_t end = std::min(status.find('\n', at), status.size());
    const std::string_view line = status.substr(at, end - at);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      const std::size_t value = line.find_first_not_of(" \t", name.size() + 1);
      return value == std::string_view::npos ? std::string_view() : line.substr(value);
    }
    at = end + 1;
  }
  return {};
}

}  // namespace

std::string stop_in(std::string_view status) {
  const std::string_view state = value_of(status, "State");
  const std::string_view tracer = value_of(status, "TracerPid");
  if (state.starts_with('t')) return fmt::format("process {} has stopped it, as a debugger does", tracer);
  if (state.starts_with('T')) return "a signal has stopped it";
  return {};
}

std::string stop_of(int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  return stop_in(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace lockstep::internal::comm
