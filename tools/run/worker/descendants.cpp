#include "tools/run/worker/descendants.h"

#include <dirent.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "tools/run/worker/process_state.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience(5);

std::vector<pid_t> children(pid_t spared) {
  std::vector<pid_t> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (folder == nullptr) return result;
  while (const dirent* entry = readdir(folder.get())) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid > 0 && pid != spared && process_state(pid).parent == getpid()) result.push_back(pid);
  }
  return result;
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> kill_descendants(SignalQueue& signals, pid_t spared, std::vector<int>& other_signals) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  for (;;) {
    // Each that dies hands its own children over to this process: they are found in the next round.
    std::vector<pid_t> found = children(spared);
    if (found.empty()) return found;
    for (const pid_t pid : found) kill(pid, SIGKILL);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return found;
    pollfd queue{signals.fd(), POLLIN, 0};
    // A signal may have been read before: so not for long.
    poll(&queue, 1, static_cast<int>(left < 20 ? left : 20));
    for (SignalQueue::ReceivedSignal received; signals.next(received);) {
      if (received.signal != SIGCHLD) other_signals.push_back(received.signal);
    }
    for (const pid_t pid : found) waitpid(pid, nullptr, WNOHANG);
  }
}

}  // namespace lockstep::tools
