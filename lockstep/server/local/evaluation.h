// An evaluation by the workers of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/local/step_payloads.h"

namespace lockstep::internal::inline server {

/// Waits until the steps that were scheduled before count, throws their first error, and lets no other step begin
/// meanwhile: all parts see one state of the servers. Then each worker takes one part after another, of the batches
/// that `next` gives until it gives null; `take` gets the results of each batch's parts, batch by batch, on the
/// caller's thread. What parts have changed is applied at the end, in their order. Where a part throws, nothing is, and
/// its error comes as a ReplicaError. When this returns or throws, no call of `call` is under way. Workers that are
/// processes call the function of the step `kind` instead, and may still be in it after an error.
void evaluate_on_workers(CoordinatedRun& run, std::optional<uint32_t> kind,
                         FunctionRef<const PerReplica<Batch>*()> next, const EvaluateFunction& call,
                         FunctionRef<void(const PerReplica<Batch>&, const std::vector<PartResult>&)> take);

}  // namespace lockstep::internal::server
