// The threads by which a World watches other workers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace lockstep::internal::inline comm {

/// How often a worker sends a heartbeat, and looks for those of others, where it counts as lost after `lost`.
inline std::chrono::milliseconds heartbeat_interval(std::chrono::milliseconds lost) {
  constexpr int kHeartbeatsUntilLost = 20;
  return std::clamp(lost / kHeartbeatsUntilLost, std::chrono::milliseconds(1), std::chrono::milliseconds(250));
}

/// Starts a thread that no signal goes to: these are for the program's own threads. `what` is its name in the
/// ClusterError (LS-CLUSTER-SOCKET) that is thrown where the system gives no thread.
std::thread start_service_thread(int64_t worker, const char* what, std::function<void()> body);

}  // namespace lockstep::internal::comm
