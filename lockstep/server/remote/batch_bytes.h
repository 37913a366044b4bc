// Batches as bytes between tasks, and a reader that believes nothing of what came.
#pragma once

#include <string>

#include "lockstep/core/bytes.h"
#include "lockstep/data/batch.h"

namespace lockstep::internal::inline server {

/// A UsageError (LS-STEP-VALUE) for a batch with a tensor that does not travel.
void require_sendable(const Batch& batch);
/// The same error for such a batch.
void put(std::string& bytes, const Batch& batch);
/// Throws the PeerError of `from` where the bytes are none. Memory is taken for what has come, and no more.
Batch get_batch(MessageReader& from);

}  // namespace lockstep::internal::server
