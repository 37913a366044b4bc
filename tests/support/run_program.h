// Runs a program as a user does.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::testing {

struct Result {
  int code = -1;
  std::string output;  // both streams
};

inline Result run_program(const std::string& program, const std::string& arguments = "") {
  const std::string command = program + " " + arguments + " 2>&1 </dev/null";
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) result.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

#ifdef LOCKSTEP_PROGRAM
/// The program `lockstep`.
inline Result run(const std::string& arguments) { return run_program(LOCKSTEP_PROGRAM, arguments); }
#endif

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace lockstep::testing
