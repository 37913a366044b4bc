#include "lockstep/server/protocol/worker_machine.h"

#include "lockstep/server/protocol/worker_machine-inl.h"

namespace lockstep::internal::inline server {

template class BasicWorkerMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
