#include "lockstep/optim/forms/host.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/optim/forms/stages.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

OneHostForm::OneHostForm(UpdateWork& work, std::unique_ptr<HostUpdate> host) : Form(work), host_(std::move(host)) {
  work.parts.push_back({FusedUpdate(work.targets, {0, num_leaves()}, host_->lanes(), host_->squares())});
}

const StageTables& OneHostForm::stages() const {
  using Self = OneHostForm;
  static constexpr StageTables kStages(
      {}, {on_each_lane_by_form<&Self::pack>("pack"), once_by_form<&Self::meet_with_sums>("meet with sums")},
      {kUpdate, once_by_form<&Self::vote>("vote"), on_each_lane_by_form<&Self::move>("move")});
  return kStages;
}

void OneHostForm::begin_step(const StepOptions& options) {
  const GradientTable& gradients = work_.gradients;
  std::vector<char> present(work_.variables.size());
  for (std::size_t i = 0; i < present.size(); ++i) {
    present[i] = gradients.present(i) && !gradients.in_rows(i) ? 1 : 0;
    if (!gradients.in_rows(i)) continue;
    // A step writes all of a value from one half into the other. Rows are written where they are.
    work_.variables[i]->as_mirrored().leave_halves();
    for (const auto& slot : work_.targets[i].slots) slot->as_mirrored().leave_halves();
  }
  host_->begin_step(present);
  // A gradient that is not finite is looked for in all blocks.
  const bool whole = options.check_finite || options.skip_non_finite;
  const UpdatePlan& plan = work_.parts.front().update.plan();
  host_->gradients().begin_step(work_.told_of_dense(), plan.shares(), plan.lanes(), whole);
}

void OneHostForm::agree_on_counts() {
  agree_on_call(work_.group->rounds(),
                {.call = "gradients of an update", .name = work_.name, .step = work_.group->step()},
                [this](Proposal& mine) { work_.tell_counts(mine); });
}

void OneHostForm::meet_with_sums() {
  agree_on_counts();
  host_->gradients().set_leaves(work_.gradients);
}

void OneHostForm::share_norm() {
  agree_on_call(work_.group->rounds(),
                {.call = "the norm of an update", .name = work_.name, .step = work_.group->step()}, [](Proposal&) {});
}

const StageTables& SeveralHostsForm::stages() const {
  using Self = SeveralHostsForm;
  static constexpr StageTables kStages(
      {},
      {on_each_lane_or_end_run<&OneHostForm::pack>("pack"), once_or_end_run<&Self::send_factors>("send factors"),
       on_each_lane_or_end_run<&Self::combine>("combine"),
       once_or_end_run<&Self::send_partial_sums>("send partial sums"), on_each_lane_or_end_run<&Self::add>("add"),
       once_or_end_run<&Self::send_sums>("send sums")},
      {kUpdate, once_or_end_run<&OneHostForm::vote>("vote"), on_each_lane_by_form<&OneHostForm::move>("move")});
  return kStages;
}

void SeveralHostsForm::send_factors() {
  agree_on_counts();
  host_->gradients().send_factors();
}

void SeveralHostsForm::send_sums() {
  sums().send_sums();
  host_->gradients().set_leaves(work_.gradients);
}

std::string SeveralHostsForm::text() const {
  return "each worker updates a part of its host's copy, in memory that the host's workers map; sums and factors "
         "travel between hosts";
}

FormOfVariable SeveralHostsForm::of_variable(std::size_t i) const {
  const Travelled travelled = host_->gradients().travelled(i);
  if (travelled.as == Travelled::As::kNothing) return {"nothing in the last step", 0};
  const char* const as = travelled.as == Travelled::As::kFactors ? "factors" : "sums";
  return {fmt::format("host memory, {} between hosts", as), travelled.bytes};
}

}  // namespace lockstep::internal::optim
