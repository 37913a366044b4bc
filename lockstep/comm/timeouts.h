// How long workers wait for each other before they say so, or give up.
#pragma once

#include <chrono>

namespace lockstep {

/// Each is one millisecond to 365 days.
struct WorkerTimeouts {
  /// How long join() waits for all workers. Then a ClusterError lists who is missing.
  std::chrono::milliseconds join = std::chrono::seconds(300);
  /// How long a worker may send no heartbeat. Then it counts as frozen, and the run ends.
  std::chrono::milliseconds lost = std::chrono::seconds(5);
  /// How long a call waits before it warns which workers have not come to it. It warns again after each such time.
  std::chrono::milliseconds stalled = std::chrono::seconds(30);
  /// How long a call waits before it gives up: it throws a PeerError that names the workers that have not come.
  std::chrono::milliseconds patience = std::chrono::seconds(300);

  bool operator==(const WorkerTimeouts&) const = default;
};

}  // namespace lockstep
