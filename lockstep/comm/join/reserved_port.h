// A port that a program names before anybody listens there.
#pragma once

#include <cstdint>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// A TCP port of the loopback interface at which nobody listens. While it lives, the system gives the port to nobody
/// who asks for any port. Whoever asks for it by number, with SO_REUSEADDR as a worker that listens does, gets it.
///
/// A process that is started by exec() does not inherit it; one that is only forked keeps the port as well.
class ReservedPort {
 public:
  /// Throws a ClusterError (LS-CLUSTER-SOCKET) where there is none.
  ReservedPort();

  uint16_t number() const { return number_; }

 private:
  FileDescriptor socket_;
  uint16_t number_;
};

}  // namespace lockstep::internal::comm
