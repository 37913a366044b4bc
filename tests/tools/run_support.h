// For the tests of `lockstep run`: how it is started, and how its output is looked at.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_program.h"
#include "tests/support/started_program.h"

namespace lockstep::testing {

/// The variables that `env -0` wrote.
inline std::map<std::string, std::string> variables_in(const std::string& file) {
  std::map<std::string, std::string> result;
  std::istringstream in(text_of(file));
  for (std::string entry; std::getline(in, entry, '\0');) {
    const std::size_t equals = entry.find('=');
    result[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return result;
}

/// Lives until it is killed.
inline constexpr const char* kForever = "exec tail -f /dev/null";

class RunProgram : public ::testing::Test {
 protected:
  RunProgram() : folder_(std::filesystem::temp_directory_path() / ("lockstep-run-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~RunProgram() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string fifo(const std::string& name) const {
    mkfifo(path(name).c_str(), 0600);
    return path(name);
  }
  const std::filesystem::path folder_;
};

/// lockstep run <flags> -- sh -c <script>
inline std::vector<std::string> command(std::vector<std::string> flags, const std::string& script) {
  flags.insert(flags.begin(), {LOCKSTEP_PROGRAM, "run"});
  flags.insert(flags.end(), {"--", "sh", "-c", script});
  return flags;
}

struct Ended {
  int code;
  std::string output, errors;
};

inline Ended run_to_end(
    const std::vector<std::string>& words, const std::function<void()>& prepare = [] {}) {
  StartedProgram program(words, prepare);
  const int code = program.wait();
  return {code, program.output(), program.errors()};
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::string last_line_of(const std::string& text) {
  const auto lines = lines_of(text);
  return lines.empty() ? "" : lines.back();
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace lockstep::testing
