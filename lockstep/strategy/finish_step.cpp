// The end of a step: verification of variables, and averages of those that each replica trains.
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep {

/// The end of a step, after all replicas have returned and before the step is counted. Everything that can fail comes
/// before the first write.
void Strategy::finish_step() {
  const int64_t completed = group_->step() + 1;
  if (verify_every_ > 0 && completed % verify_every_ == 0) {
    registry_->forget_unused();
    // Workers go on to exchange averages, so none may leave alone.
    internal::ValueDigests digests(*group_);
    const auto all = internal::agree_on_call(group_->rounds(), {.call = "the verification of a step", .step = step()},
                                             [&](internal::Proposal& mine) {
                                               registry_->verify();
                                               if (num_workers() > 1) registry_->add_mirrored(digests);
                                               // A handle may be left on one worker alone.
                                               digests.fill_in(mine, /*names_must_match=*/false);
                                             });
    digests.require_equal(all, "the verification of a step");
  }
  if (!registry_->synchronization().averages_after(completed)) return;
  std::vector<internal::VariableState*> local;
  for (const auto& variable : registry_->variables()) {
    if (variable->is_trained_locally() && !variable->is_slot()) local.push_back(variable.get());
  }
  if (local.empty()) return;
  const internal::ComputeSettingsGuard settings(group_->plan().compute);
  std::vector<std::pair<internal::VariableState*, at::Tensor>> averages;
  for (internal::VariableState* variable : local) averages.emplace_back(variable, variable->read());
  for (const auto& [variable, mean] : averages) variable->write(mean);
}

}  // namespace lockstep
