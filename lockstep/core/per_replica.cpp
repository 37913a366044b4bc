#include "lockstep/core/per_replica.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

void throw_not_local(ReplicaId asked, ReplicaId first, std::size_t size) {
  if (size == 0) {
    throw UsageError("LS-PER-REPLICA-SIZE",
                     fmt::format("the value of replica {} was asked for, and the PerReplica is empty", asked.value()),
                     "fill it by per_replica(), run() or a data set's epoch() first");
  }
  throw UsageError("LS-NOT-LOCAL",
                   fmt::format("replica {} is not of this process, which has replicas {} to {}", asked.value(),
                               first.value(), first.value() + static_cast<int64_t>(size) - 1),
                   "index by a replica of this process, or gather() the values of all");
}

}  // namespace lockstep::internal::core
