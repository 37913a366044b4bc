// A small second process that kills the workers' process groups if the launcher itself is killed.
#pragma once

#include <sys/types.h>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

/// The kernel kills the workers when the launcher dies, but not what they have started. The watchdog notices the
/// launcher's death by the end of a pipe, kills the groups that it was told of, and ends.
class Watchdog {
 public:
  /// Forks. Throws a ClusterError (LS-LAUNCH). SIGPIPE must be ignored.
  Watchdog();
  /// Ends the watchdog.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  pid_t pid() const { return pid_; }
  /// A group to kill from now on.
  void add(pid_t group) { tell(group); }
  /// The group is empty: its number may come to mean another one.
  void remove(pid_t group) { tell(-group); }

 private:
  void tell(pid_t message);

  internal::FileDescriptor pipe_;
  pid_t pid_ = 0;
};

}  // namespace lockstep::tools
