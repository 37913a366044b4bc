// What the program gets for a step that never counts.
#pragma once

#include <exception>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

/// A ReplicaError that is nested on the error of the step's function, or a PeerError, CancelledError or EndOfStream.
std::exception_ptr error_of(const StepClosed& closed);

}  // namespace lockstep::internal::server
