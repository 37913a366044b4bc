#include "tools/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

int lost_output = 0;  // why something that was printed has not arrived

}  // namespace

void print_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  for (const auto& [name, value] : rows) std::fputs(fmt::format("{:<{}}  {}\n", name, width, value).c_str(), stdout);
  flush_output();
}

void print_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    std::fputs((line + "\n").c_str(), stdout);
  }
  flush_output();
}

void print_json(const nlohmann::ordered_json& json) {
  std::fputs((json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n").c_str(), stdout);
  flush_output();
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 && lost_output == 0) lost_output = errno;
  std::cout.flush();
}

void finish_output() {
  flush_output();
  if (lost_output == 0 && std::ferror(stdout) == 0 && std::cout) return;
  throw DataError("LS-FILE",
                  std::string("what was to be printed could not be written to standard output: ") +
                      std::strerror(lost_output == 0 ? EIO : lost_output),
                  "make room on its disk, or send it somewhere else");
}

}  // namespace lockstep::tools
