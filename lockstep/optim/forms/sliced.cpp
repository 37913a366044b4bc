#include "lockstep/optim/forms/sliced.h"

#include "lockstep/optim/forms/stages.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

namespace {

/// Makes the part of `work` that has this worker's slices.
const FusedUpdate& part_of_slices(UpdateWork& work) {
  const ReplicaGroup& group = *work.group;
  const LaneRange own = Slices::lanes_of(group.rounds().worker_index(), group.num_workers(), group.plan().num_lanes());
  work.parts.push_back({FusedUpdate(work.targets, {0, group.num_replicas()}, own, {})});
  return work.parts.front().update;
}

}  // namespace

SlicedForm::SlicedForm(UpdateWork& work, const std::vector<std::vector<double>>& initial, const AskedForm& asked)
    : Form(work), asked_(asked), sliced_(*work.group, part_of_slices(work), initial, work.name, asked.form) {}

const StageTables& SlicedForm::stages() const {
  using Self = SlicedForm;
  static constexpr StageTables kStages(
      {}, {on_each_lane_or_end_run<&Self::pack>("pack"), once_or_end_run<&Self::send>("send")},
      {on_each_lane_or_end_run<&Self::prepare>("prepare"), once_or_end_run<&Self::vote>("vote"),
       on_each_lane_or_end_run<&Self::update_and_commit>("update")});
  return kStages;
}

void SlicedForm::begin_step(const StepOptions&) {
  asked_.require_no_host_memory(work_.name, "its slots are sliced");
  std::vector<char> present(work_.variables.size());
  for (std::size_t i = 0; i < present.size(); ++i) present[i] = work_.gradients.present(i) ? 1 : 0;
  sliced_.begin_step(work_.gradients.told(), present);
  leave_halves();
}

void SlicedForm::prepare(int lane, int num_lanes) {
  if (work_.is_skipped) return;
  sliced_.prepare(update_of_slices(), work_.gradients, lane, num_lanes, work_.parts.front().clip, work_.measures);
}

void SlicedForm::vote() {
  if (!work_.is_skipped) sliced_.vote(update_of_slices(), work_.tell_counts);
}

void SlicedForm::update_and_commit(int lane, int num_lanes) {
  // prepare() has measured, where nothing did before.
  update_of_slices().update(work_.gradients, lane, work_.parts.front().clip, /*is_measured=*/true);
  if (!work_.is_skipped) sliced_.commit(lane, num_lanes);
}

FormOfVariable SlicedForm::of_variable(std::size_t i) const {
  if (!sliced_.has_sent()) return {};
  const Travelled travelled = sliced_.travelled(i);
  if (travelled.as == Travelled::As::kNothing) return {"nothing in the last step", 0};
  return {travelled.as == Travelled::As::kFactors ? "slices, from factors" : "slices", travelled.bytes};
}

}  // namespace lockstep::internal::optim
