#include "lockstep/core/stop_request.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
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

void request_stop() noexcept { requested.store(true, std::memory_order_relaxed); }

bool internal::is_stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }
void internal::forget_stop_request() noexcept { requested.store(false, std::memory_order_relaxed); }

}  // namespace lockstep
