#include "tools/run/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

[[noreturn]] void keep(int pipe) {
  setpgid(0, 0);  // so that a signal to the launcher's group misses it
  prctl(PR_SET_NAME, "lockstep-watchdog");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // It holds no one's pipe open.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  std::set<pid_t> groups;
  pid_t message = 0;
  for (ssize_t got; (got = read(pipe, &message, sizeof message)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got < 0) continue;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Watchdog::Watchdog() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) ends = {-1, -1};
  const internal::FileDescriptor read_end(ends[0]);
  pipe_ = internal::FileDescriptor(ends[1]);
  pid_ = pipe_.is_open() ? fork() : -1;
  if (pid_ < 0) {
    throw ClusterError("LS-LAUNCH", fmt::format("the launcher could not start its watchdog: {}", std::strerror(errno)),
                       "raise the limit on open files (ulimit -n) or processes (ulimit -u)");
  }
  if (pid_ > 0) return;
  pipe_.close();
  keep(read_end.get());
}

Watchdog::~Watchdog() {
  pipe_.close();
  waitpid(pid_, nullptr, 0);
}

void Watchdog::tell(pid_t message) {
  // Where somebody has killed the watchdog, the job goes on without.
  const ssize_t written = write(pipe_.get(), &message, sizeof message);
  static_cast<void>(written);
}

}  // namespace lockstep::tools
