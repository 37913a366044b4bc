// How long workers wait for each other before they say so, or give up.
#pragma once

#include <chrono>

namespace lockstep {

/// Each is one millisecond to 365 days; `step` may be 0 too.
struct WorkerTimeouts {
  /// How long join() waits for all workers. Then a ClusterError lists who is missing.
  std::chrono::milliseconds join = std::chrono::seconds(300);
  /// How long a worker may send no heartbeat. Then it counts as frozen, and the run ends.
  std::chrono::milliseconds lost = std::chrono::seconds(5);
  /// How long a call waits before it warns which workers have not come to it. It warns again after each such time.
  std::chrono::milliseconds stalled = std::chrono::seconds(30);
  /// How long a call waits for workers of which it does not know what keeps them: then it gives up, and throws a
  /// PeerError that names the workers that have not come. The time in which all of these are at work does not count.
  std::chrono::milliseconds patience = std::chrono::seconds(300);
  /// How long a call waits for workers that are at work: in the function of an on_chief, in a factory, while they read
  /// data, save or restore. Some of these calls take a `.limit` of their own, which stands in place of this one.
  std::chrono::milliseconds work = std::chrono::hours(1);
  /// How long a scheduled step of a ParameterServerStrategy may run: then it is given to another worker. 0: for ever.
  std::chrono::milliseconds step = std::chrono::milliseconds(0);

  bool operator==(const WorkerTimeouts&) const = default;
};

}  // namespace lockstep
