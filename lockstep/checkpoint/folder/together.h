// Work that every worker does by itself, and that counts only where all have done it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <exception>
#include <string>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// While it lives, the other workers are told that this one saves, or restores.
PhaseScope told_phase(const Strategy& strategy, WorkerPhase::Kind kind);

/// The texts of all workers that are not empty, each with a line's end behind it.
std::string texts_of_all(const Strategy& strategy, const std::string& mine);

/// One line for texts_of_all(): that this worker failed in `call`, and why.
std::string text_of_failure(const Strategy& strategy, const char* call, const std::exception_ptr& error);
/// The first of such lines as a PeerError (LS-PEER-FAILED). Its phase is this worker's, because all make the same call.
PeerError error_of_first_failure(const Strategy& strategy, const std::string& texts);

/// Calls `work` on each worker, which makes no call of all workers unless it makes it on each. Where it throws on one,
/// that error is thrown there, and a PeerError with its text on the others. `call` begins that text.
void all_or_none(const Strategy& strategy, const char* call, FunctionRef<void()> work);

/// Bytes of each replica on every worker, in replica order, from those of this worker's replicas.
std::vector<at::Tensor> bytes_of_all_replicas(const Strategy& strategy, const std::vector<at::Tensor>& mine);

}  // namespace lockstep::internal::checkpoint
