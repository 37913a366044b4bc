#include "lockstep/comm/network/join/refusal.h"

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

void throw_refused(uint64_t refusal, const std::string& text) {
  if (refusal == kDiffers) {
    throw ClusterError("LS-CLUSTER-DIFFERS", text,
                       "give all workers the same program, number of workers, processor type, settings of the matrix "
                       "library and secret, and an index each");
  }
  if (refusal == kTaken) {
    throw ClusterError("LS-CLUSTER-TAKEN", text, "end the other process, or give each worker an index of its own");
  }
  throw ClusterError("LS-CLUSTER-UNREACHABLE", text,
                     "if that worker has ended, look at its own message; otherwise open the firewalls between the "
                     "hosts, or choose the "
                     "network that connects them by LOCKSTEP_INTERFACE");
}

}  // namespace lockstep::internal::comm
