#include "lockstep/optim/forms/every_worker.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/optim/forms/stages.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

EveryWorkerForm::EveryWorkerForm(UpdateWork& work, const AskedForm& asked, std::string why_not_shared)
    : Form(work),
      why_not_shared_(std::move(why_not_shared)),
      rounds_(asked.wire != WireFormat::kExact),
      exchange_(work.variables, *work.group, asked.form, asked.wire, asked.buckets) {
  const ReplicaGroup& group = *work.group;
  work.parts.push_back({FusedUpdate(work.targets, {0, group.num_replicas()}, group.plan().num_lanes())});
}

const StageTables& EveryWorkerForm::stages() const {
  using Self = EveryWorkerForm;
  static constexpr Stage kCompare = on_each_lane_by_form<&Self::compare>("compare");
  static constexpr Stage kPack = on_each_lane_or_end_run<&Self::pack>("pack");
  static constexpr Stage kSend = once_or_end_run<&Self::send>("send");
  static constexpr Stage kAdd = on_each_lane_or_end_run<&Self::add>("add");
  static constexpr Stage kSendSums = once_or_end_run<&Self::send_sums>("send sums");
  static constexpr Stage kUnpack = on_each_lane_by_form<&Self::unpack>("unpack");
  static constexpr Stage kReduceOthers = once_or_end_run<&Self::reduce_others>("reduce others");
  static constexpr StageTables kExact({kCompare}, {kPack, kSend, kAdd, kSendSums, kReduceOthers}, {kUpdate});
  static constexpr StageTables kRounded({kCompare}, {kPack, kSend, kAdd, kSendSums, kUnpack, kReduceOthers}, {kUpdate});
  return rounds_ ? kRounded : kExact;
}

void EveryWorkerForm::begin_step(const StepOptions&) {
  exchange_.begin_step(work_.told_of_dense(), work_.gradients.told().reports);
  for (std::size_t i = 0; exchange_.has_factors() && i < work_.variables.size(); ++i) {
    if (exchange_.has_factors(i)) work_.parts.front().update.expect_factors(i);
  }
  leave_halves();
}

void EveryWorkerForm::send_sums() {
  exchange_.send_sums();
  exchange_.set_leaves(work_.gradients);
}

void EveryWorkerForm::reduce_others() {
  for (std::size_t i = 0; i < work_.variables.size(); ++i) {
    if (!work_.gradients.in_rows(i) && !exchange_.takes(i)) work_.gradients.reduce(i, *work_.group);
  }
}

std::string EveryWorkerForm::text() const {
  return fmt::format("every worker updates all, because {}", why_not_shared_);
}

FormOfVariable EveryWorkerForm::of_variable(std::size_t i) const {
  if (!exchange_.takes(i)) return {"sums, one by one", -1};
  const Travelled travelled = exchange_.travelled(i);
  if (travelled.as == Travelled::As::kNothing) return {"nothing in the last step", 0};
  if (travelled.as == Travelled::As::kFactors) return {"factors", travelled.bytes};
  const char* const numbers = travelled.is_rounded ? " as bfloat16" : "";
  return {fmt::format("sums{}{}", numbers, travelled.during_backward ? ", during backward" : ""), travelled.bytes};
}

}  // namespace lockstep::internal::optim
