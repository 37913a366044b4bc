#include "tools/run/worker/worker_end.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>

#include "lockstep/core/process/exit_codes.h"

namespace lockstep::tools {

namespace {

std::string start_failure_text(const std::string& program, int error) {
  const bool is_path = program.find('/') != std::string::npos;
  if (error == ENOENT && is_path && access(program.c_str(), F_OK) == 0) {
    return fmt::format("'{}' is there, but the interpreter that it needs is not: correct its first line", program);
  }
  if (error == ENOENT && !is_path)
    return fmt::format("no folder of PATH has a program '{}': name one of this folder as ./{}", program, program);
  if (error == ENOENT) return fmt::format("there is no file '{}': build the program, or correct its path", program);
  if (error == EACCES) {
    return fmt::format("'{}' is not executable ({}): name a program, or chmod +x it", program, std::strerror(error));
  }
  return fmt::format("'{}': {}", program, std::strerror(error));
}

}  // namespace

WorkerEnd end_of(int worker, pid_t pid, int status, double seconds) {
  if (WIFSIGNALED(status)) return {worker, pid, WorkerEnd::Kind::kSignalled, WTERMSIG(status), seconds};
  return {worker, pid, WorkerEnd::Kind::kExited, WEXITSTATUS(status), seconds};
}

std::string name_of(const WorkerEnd& end) { return end.task.empty() ? fmt::format("worker {}", end.worker) : end.task; }

std::string text_of(const WorkerEnd& end, const std::string& program) {
  std::string who = fmt::format("{} (pid {})", name_of(end), end.pid);
  const std::string when = fmt::format("{:.3g} s after the start", end.seconds);
  switch (end.kind) {
    case WorkerEnd::Kind::kExited: return fmt::format("{} exited with code {}, {}", who, end.value, when);
    case WorkerEnd::Kind::kSignalled: return fmt::format("{} was killed by {}, {}", who, signal_text(end.value), when);
    case WorkerEnd::Kind::kNotStarted:
      return fmt::format("{} could not be started: {}", name_of(end), start_failure_text(program, end.value));
    case WorkerEnd::Kind::kNotPinned:
      return fmt::format("{} could not be given its cores ({}); --no-pin starts it without", name_of(end),
                         std::strerror(end.value));
  }
  return who;
}

int exit_code_of(const WorkerEnd& end) {
  switch (end.kind) {
    case WorkerEnd::Kind::kExited: return end.value;
    case WorkerEnd::Kind::kSignalled: return 128 + end.value;
    case WorkerEnd::Kind::kNotStarted: return end.value == ENOENT || end.value == ENOTDIR ? 127 : 126;
    case WorkerEnd::Kind::kNotPinned: return 126;
  }
  return 1;
}

bool was_killed_from_outside(const WorkerEnd& end) {
  return end.kind == WorkerEnd::Kind::kSignalled && end.value != SIGABRT && end.value != SIGPIPE &&
         end.value != SIGTERM;
}

bool only_lost_another(const WorkerEnd& end) {
  return end.kind == WorkerEnd::Kind::kExited && end.value == static_cast<int>(ExitCode::kRestartable);
}

bool says_its_own_error(const WorkerEnd& end) {
  constexpr std::array<ExitCode, 3> kOwn = {ExitCode::kDataError, ExitCode::kBug, ExitCode::kConfiguration};
  return end.kind == WorkerEnd::Kind::kExited &&
         std::find(kOwn.begin(), kOwn.end(), static_cast<ExitCode>(end.value)) != kOwn.end();
}

bool is_restartable(const WorkerEnd& end) {
  const int code = exit_code_of(end);
  constexpr std::array<int, 5> kFinal = {2, 126, 127, static_cast<int>(ExitCode::kDataError),
                                         static_cast<int>(ExitCode::kConfiguration)};
  return std::find(kFinal.begin(), kFinal.end(), code) == kFinal.end();
}

std::chrono::milliseconds pause_before(int restart, double first) {
  const double seconds = std::min(30.0, std::ldexp(first, std::min(restart - 1, 30)));
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::string signal_text(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace lockstep::tools
