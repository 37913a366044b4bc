#include "lockstep/comm/network/run_state.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

NetworkRunState::NetworkRunState() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_.is_open()) return;
  throw ClusterError("LS-CLUSTER-SOCKET", fmt::format("no event for a run (eventfd): {}", std::strerror(errno)),
                     "look at this host's limits of open files");
}

bool NetworkRunState::begin(uint64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_frozen_) return false;
  calls_.begun = call;
  return true;
}

bool NetworkRunState::take(uint64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_frozen_) return false;
  calls_.taken = call;
  return true;
}

bool NetworkRunState::finish(uint64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_frozen_) return false;
  calls_.returned = call;
  return true;
}

Calls NetworkRunState::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

Calls NetworkRunState::freeze() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_frozen_ = true;
  return calls_;
}

void NetworkRunState::set_end(const RunEnd& end) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (end_) return;
    is_frozen_ = true;
    end_ = end;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

std::optional<RunEnd> NetworkRunState::end() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

}  // namespace lockstep::internal::comm
