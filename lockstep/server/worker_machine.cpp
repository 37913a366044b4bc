#include "lockstep/server/worker_machine.h"

#include "lockstep/server/worker_machine-inl.h"

namespace lockstep::internal::inline server {

template class BasicWorkerMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
