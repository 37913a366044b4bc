#include "lockstep/server/protocol/server_machine.h"

#include "lockstep/server/protocol/server_machine-inl.h"

namespace lockstep::internal::inline server {

template class BasicServerMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
