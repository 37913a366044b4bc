#include "lockstep/optim/forms/without_exchange.h"

#include "lockstep/optim/forms/stages.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

// One process.

AloneForm::AloneForm(UpdateWork& work) : Form(work) {
  const ReplicaGroup& group = *work.group;
  work.parts.push_back({FusedUpdate(work.targets, {0, num_leaves()}, group.plan().num_lanes())});
}

const StageTables& AloneForm::stages() const {
  static constexpr StageTables kStages({}, {}, {kUpdate});
  return kStages;
}

void AloneForm::begin_step(const StepOptions&) { expect_own_factors(); }

// Each replica by itself.

LocalForm::LocalForm(UpdateWork& work, const AskedForm& asked) : Form(work), asked_(asked) {
  const auto factor = static_cast<double>(work.group->num_replicas());
  for (int64_t r = 0; r < work.group->num_local_replicas(); ++r)
    work.parts.push_back({FusedUpdate(work.targets, {r, 1}, 1), factor});
}

const StageTables& LocalForm::stages() const {
  static constexpr StageTables kStages({}, {}, {kUpdate});
  return kStages;
}

void LocalForm::begin_step(const StepOptions&) {
  if (work_.group->num_workers() > 1) {
    asked_.require_no_host_memory(work_.name, "each replica trains variables of its own");
  }
  expect_own_factors();
}

// A reducer of the program's own.

ReducerForm::ReducerForm(UpdateWork& work, const AskedForm& asked) : Form(work), asked_(asked) {
  const ReplicaGroup& group = *work.group;
  work.parts.push_back({FusedUpdate(work.targets, {0, num_leaves()}, group.plan().num_lanes())});
}

const StageTables& ReducerForm::stages() const {
  static constexpr StageTables kInOneProcess({}, {on_each_lane_by_form<&ReducerForm::reduce>("reduce")}, {kUpdate});
  static constexpr StageTables kAcross({}, {once_by_form<&ReducerForm::reduce_across_workers>("reduce across workers")},
                                       {kUpdate});
  return work_.group->num_workers() == 1 ? kInOneProcess : kAcross;
}

void ReducerForm::begin_step(const StepOptions&) {
  if (work_.group->num_workers() > 1) {
    asked_.require_no_host_memory(work_.name, "sums are added by a reducer of the program's own");
    leave_halves();
  }
  expect_own_factors();
}

void ReducerForm::reduce(int lane, int num_lanes) {
  for (auto i = static_cast<std::size_t>(lane); i < work_.variables.size(); i += static_cast<std::size_t>(num_lanes)) {
    if (!work_.gradients.in_rows(i)) work_.gradients.reduce(i, *work_.group);
  }
}

std::string ReducerForm::text() const {
  if (work_.group->num_workers() == 1) return {};
  return "every worker updates all, because sums are added by a reducer of the program's own";
}

FormOfVariable ReducerForm::of_variable(std::size_t) const { return {"sums, one by one", -1}; }

}  // namespace lockstep::internal::optim
