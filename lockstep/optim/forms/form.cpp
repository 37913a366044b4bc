// What forms have in common, and the choice of a form.
#include "lockstep/optim/forms/form.h"

#include <string>
#include <utility>

#include "lockstep/optim/forms/every_worker.h"
#include "lockstep/optim/forms/host.h"
#include "lockstep/optim/forms/sliced.h"
#include "lockstep/optim/forms/without_exchange.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

std::unique_ptr<Form> form_at_once(UpdateWork& work, const AskedForm& asked, Slots slots,
                                   const std::vector<std::vector<double>>& initial) {
  const ReplicaGroup& group = *work.group;
  if (work.local) return std::make_unique<LocalForm>(work, asked);
  if (slots == Slots::kSliced) return std::make_unique<SlicedForm>(work, initial, asked);
  if (!group.reducer().in_tree_order()) return std::make_unique<ReducerForm>(work, asked);
  if (group.num_workers() == 1) return std::make_unique<AloneForm>(work);
  return nullptr;
}

std::unique_ptr<Form> agree_on_form(UpdateWork& work, const AskedForm& asked) {
  std::string why_not_shared;
  auto host = HostUpdate::agree(*work.group, work.targets, work.name, asked, why_not_shared);
  if (!host) return std::make_unique<EveryWorkerForm>(work, asked, std::move(why_not_shared));
  if (host->gradients().sums_between_hosts()) return std::make_unique<SeveralHostsForm>(work, std::move(host));
  return std::make_unique<OneHostForm>(work, std::move(host));
}

void Form::measure(int lane, int) {
  work_.for_each_part(lane, [&](UpdatePart& part, int own_lane) {
    part.update.measure(work_.gradients, own_lane);
    part.rows.measure(own_lane);
  });
}

void Form::call_rules(int lane, int) {
  work_.for_each_part(lane, [&](UpdatePart& part, int own_lane) {
    part.update.call_rules(work_.gradients, own_lane, part.clip, work_.measures, /*digests=*/num_computations() > 1);
  });
}

void Form::update(int lane, int) {
  work_.for_each_part(lane, [&](UpdatePart& part, int own_lane) {
    part.update.update(work_.gradients, own_lane, part.clip, work_.measures);
  });
}

void Form::expect_own_factors() {
  for (std::size_t i = 0; work_.gradients.has_factors() && i < work_.variables.size(); ++i) {
    if (!work_.gradients.has_factors(i)) continue;
    for (UpdatePart& part : work_.parts) part.update.expect_factors(i);
  }
}

void Form::leave_halves() {
  for (const auto& variable : work_.variables) {
    if (variable->is_in_halves()) variable->as_mirrored().leave_halves();
  }
}

}  // namespace lockstep::internal::optim
