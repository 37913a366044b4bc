#include "lockstep/core/process/stop_request.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler takes no lock");

/// What handled a signal before. The handler reads an entry only after it was written: it is installed afterwards.
struct Previous {
  bool is_installed = false;
  struct sigaction action = {};
};
std::array<Previous, NSIG> previous;
std::mutex installing;

/// The socket by which `lockstep run` hears that this process was asked for a stop; -1 where there is none. Its number
/// stands in the environment with its inode: a program that this one has started may have another file there.
int socket_to_launcher() {
  const char* const text = std::getenv("LOCKSTEP_STOP_SOCKET");
  int file = -1;
  unsigned long long inode = 0;
  if (!text || std::sscanf(text, "%d:%llu", &file, &inode) != 2) return -1;
  struct stat what = {};
  return fstat(file, &what) == 0 && S_ISSOCK(what.st_mode) && what.st_ino == inode ? file : -1;
}

// A signal handler reads them, which must not ask the environment.
std::atomic<int> stop_socket = -1;
std::atomic<pid_t> process_of_stop_socket = 0;
[[maybe_unused]] const bool is_stop_socket_known = [] {
  process_of_stop_socket = getpid();
  stop_socket = socket_to_launcher();
  return true;
}();

/// Waits for nothing and raises no signal. A child that this process has forked was not meant.
void tell_launcher() noexcept {
  const int socket = stop_socket;
  if (socket < 0 || process_of_stop_socket != getpid()) return;
  const int error = errno;
  const char byte = 1;
  static_cast<void>(send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  errno = error;
}

/// Of POSIX, not of C++: handlers call functions with its types.
void handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  request_stop();
  const struct sigaction& before = previous[static_cast<std::size_t>(signal)].action;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    if (before.sa_sigaction) before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  errno = error;
}

}  // namespace

void stop_on_signal(int signal) {
  const auto refuse = [&](const char* why) {
    throw UsageError("LS-OPTION", fmt::format("signal {} cannot ask for a stop: {}", signal, why), "choose SIGTERM");
  };
  if (signal < 1 || signal >= NSIG) refuse("it does not exist");
  const std::lock_guard<std::mutex> lock(installing);
  Previous& entry = previous[static_cast<std::size_t>(signal)];
  if (entry.is_installed) return;
  if (sigaction(signal, nullptr, &entry.action) != 0) refuse(std::strerror(errno));
  struct sigaction ours = {};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  if (sigaction(signal, &ours, nullptr) != 0) refuse(std::strerror(errno));
  entry.is_installed = true;
}

void request_stop() noexcept {
  if (!requested.exchange(true, std::memory_order_relaxed)) tell_launcher();
}

bool internal::is_stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }
void internal::forget_stop_request() noexcept { requested.store(false, std::memory_order_relaxed); }

}  // namespace lockstep
