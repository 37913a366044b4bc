#include "lockstep/optim/forms/compare_values.h"

#include "lockstep/comm/agreement.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep::internal::inline optim {

void compare_values(const ReplicaGroup& group, const std::string& name, std::span<MirroredState* const> states) {
  ValueDigests digests(group);
  const auto fill_in = [&](Proposal& mine) {
    for (MirroredState* const one : states) {
      one->check_memory();
      digests.add(one->name(), one->copies().front());
    }
    digests.fill_in(mine);
  };
  const auto all =
      agree_on_call(group.rounds(), {.call = "values of an update", .name = name, .step = group.step()}, fill_in);
  digests.require_equal(all, "optimizer.step");
}

}  // namespace lockstep::internal::optim
