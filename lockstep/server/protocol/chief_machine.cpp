#include "lockstep/server/protocol/chief_machine.h"

#include "lockstep/server/protocol/chief_collect-inl.h"
#include "lockstep/server/protocol/chief_machine-inl.h"
#include "lockstep/server/protocol/chief_tasks-inl.h"

namespace lockstep::internal::inline server {

std::set<int64_t> decided_above(const ChiefCut& cut) {
  std::set<int64_t> decided(cut.counted_above.begin(), cut.counted_above.end());
  decided.insert(cut.closed_above.begin(), cut.closed_above.end());
  return decided;
}

template class BasicChiefMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
