// The forms in which this process has all leaves, or a reducer of the program's own adds them; and the choice of a
// form.
#include "lockstep/optim/forms/form.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/switches.h"
#include "lockstep/optim/forms/every_worker.h"
#include "lockstep/optim/forms/host.h"
#include "lockstep/optim/forms/sliced.h"
#include "lockstep/optim/forms/stages.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal {

AskedForm AskedForm::of(UpdateForm form, WireFormat wire) {
  return {.form = form,
          .wire = wire,
          .host_memory = choice_of("LOCKSTEP_HOST_MEMORY", {{"auto", true}, {"off", false}}, true),
          .buckets = choice_of("LOCKSTEP_BUCKETS", {{"auto", true}, {"off", false}}, true)};
}

void AskedForm::require_no_host_memory(const std::string& optimizer, const std::string& why) const {
  if (form != UpdateForm::kHostMemory) return;
  throw UsageError(
      "LS-UPDATE-FORM",
      fmt::format("the update of '{}' is asked for host memory, which workers cannot share: {}", optimizer, why),
      "ask for another form, or for auto: see docs/multi-worker.md");
}

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

}  // namespace lockstep::internal
