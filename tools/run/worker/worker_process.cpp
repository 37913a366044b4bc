#include "tools/run/worker/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

/// What a child writes to its pipe when it does not come to the program.
struct StartFailure {
  WorkerEnd::Kind kind;
  int error;
};

[[noreturn]] void refuse(const std::string& name, const std::string& what, int error) {
  throw ClusterError("LS-LAUNCH", fmt::format("{} could not be started: {}: {}", name, what, std::strerror(error)),
                     "raise the limit on open files (ulimit -n) or processes (ulimit -u), or start fewer workers");
}

struct Pipe {
  internal::FileDescriptor read;
  internal::FileDescriptor write;
};

Pipe make_pipe(const std::string& name) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse(name, "pipe", errno);
  Pipe pipe{internal::FileDescriptor(ends[0]), internal::FileDescriptor(ends[1])};
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

internal::FileDescriptor standard_input_of(const WorkerStart& start) {
  const bool inherits = start.reads_input && isatty(STDIN_FILENO) == 0;
  const int fd = inherits ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(start.name, "standard input", errno);
  return internal::FileDescriptor(fd);
}

/// A set of any number of cores.
class CoreSet {
 public:
  explicit CoreSet(const std::vector<int>& cores) {
    if (cores.empty()) return;
    const int count = *std::max_element(cores.begin(), cores.end()) + 1;
    size_ = CPU_ALLOC_SIZE(count);
    bits_.resize(size_ / sizeof(cpu_set_t) + 1);
    for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), size_, bits_.data());
  }
  /// Pins this process; false with errno set where the system refuses.
  bool pin() const { return size_ == 0 || sched_setaffinity(0, size_, bits_.data()) == 0; }

 private:
  std::size_t size_ = 0;
  std::vector<cpu_set_t> bits_;
};

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

/// What the child needs, made ready before the fork: after it nothing is allocated.
struct Child {
  int input, output, errors, start_failure, end_notice;
  pid_t launcher;
  const StartSettings& settings;
  const CoreSet& cores;
  char* const* arguments;
  char* const* environment;

  [[noreturn]] void become_worker() const {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(128 + SIGKILL);  // it died before the line above
    if (!cores.pin()) fail(WorkerEnd::Kind::kNotPinned);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    if (settings.stop_notices >= 0) fcntl(settings.stop_notices, F_SETFD, 0);  // it stays open
    if (end_notice >= 0) fcntl(end_notice, F_SETFD, 0);
    setrlimit(RLIMIT_NOFILE, &settings.open_files);
    settings.signals->restore_in_child();
    execvpe(arguments[0], arguments, environment);
    fail(WorkerEnd::Kind::kNotStarted);
  }

 private:
  [[noreturn]] void fail(WorkerEnd::Kind kind) const {
    const StartFailure failure{kind, errno};
    const ssize_t written = write(start_failure, &failure, sizeof failure);
    _exit(written > 0 ? 127 : 126);
  }
};

}  // namespace

WorkerProcess start_worker(const WorkerStart& start, const StartSettings& settings) {
  Pipe output = make_pipe(start.name);
  Pipe errors = make_pipe(start.name);
  Pipe start_failure = make_pipe(start.name);
  const internal::FileDescriptor input = standard_input_of(start);
  const CoreSet core_set(*start.cores);
  const std::vector<char*> arguments = pointers_to(*settings.command);
  const std::vector<char*> variables = pointers_to(*start.environment);
  const Child child{.input = input.get(),
                    .output = output.write.get(),
                    .errors = errors.write.get(),
                    .start_failure = start_failure.write.get(),
                    .end_notice = start.end_notice,
                    .launcher = getpid(),
                    .settings = settings,
                    .cores = core_set,
                    .arguments = arguments.data(),
                    .environment = variables.data()};
  const pid_t pid = fork();
  if (pid < 0) refuse(start.name, "fork", errno);
  if (pid == 0) child.become_worker();
  setpgid(pid, pid);  // here too, so that its group is there when start_worker() returns
  return {pid, std::chrono::steady_clock::now(), std::move(output.read), std::move(errors.read),
          std::move(start_failure.read)};
}

WorkerEnd end_of(int index, const WorkerProcess& worker, int status) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - worker.start).count();
  StartFailure failure{};
  if (read(worker.start_failure.get(), &failure, sizeof failure) == static_cast<ssize_t>(sizeof failure)) {
    return {index, worker.pid, failure.kind, failure.error, seconds};
  }
  return end_of(index, worker.pid, status, seconds);
}

}  // namespace lockstep::tools
