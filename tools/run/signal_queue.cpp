#include "tools/run/signal_queue.h"

#include <fmt/format.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

bool is_ignored(int signal) {
  struct sigaction now = {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    if (!is_ignored(signal)) sigaddset(&mask, signal);
  }
  sigaddset(&mask, SIGCHLD);
  file_ = internal::FileDescriptor(signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!file_.is_open()) {
    throw ClusterError("LS-LAUNCH", fmt::format("signals could not be received: signalfd: {}", std::strerror(errno)),
                       "raise the limit on open files: ulimit -n");
  }
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &pipe_before_);
  // Not ignored, or the kernel would reap the workers itself; and no signal when a worker is only stopped.
  action.sa_handler = SIG_DFL;
  action.sa_flags = SA_NOCLDSTOP;
  sigaction(SIGCHLD, &action, &child_before_);
  sigprocmask(SIG_BLOCK, &mask, &mask_before_);
}

SignalQueue::~SignalQueue() {
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigaction(SIGPIPE, &pipe_before_, nullptr);
}

bool SignalQueue::next(ReceivedSignal& received) {
  signalfd_siginfo info = {};
  ssize_t got = 0;
  do {
    got = read(fd(), &info, sizeof info);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof info)) return false;
  const int signal = static_cast<int>(info.ssi_signo);
  received = {signal, signal == SIGCHLD ? static_cast<pid_t>(info.ssi_pid) : 0};
  return true;
}

void SignalQueue::restore_in_child() const {
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace lockstep::tools
