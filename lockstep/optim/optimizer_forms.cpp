// How several workers take part in an optimizer's step: they share its update, or each updates all.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/mirrored_state.h"

namespace lockstep::internal {

int64_t OptimizerState::num_leaves() const {
  return exchange_ || host_ || sliced_ ? group_->num_replicas() : group_->num_local_replicas();
}

void OptimizerState::decide_form() {
  if (!exchange_ && !host_ && group_->num_workers() > 1 && asked_form_.form == UpdateForm::kHostMemory) {
    throw UsageError("LS-UPDATE-FORM",
                     fmt::format("the update of '{}' is asked for host memory, which workers cannot share: {}", name_,
                                 local_ ? "each replica trains variables of its own"
                                        : "sums are added by a reducer of the program's own"),
                     "ask for another form, or for auto: see docs/multi-worker.md");
  }
  if (form_is_decided_) return;
  const std::vector<UpdateTarget> targets = parts_.front().update.targets();
  auto host = HostUpdate::agree(*group_, targets, name_, asked_form_, why_not_shared_);
  if (host) {
    Part part{FusedUpdate(targets, {0, group_->num_replicas()}, host->lanes(), host->squares()), 1};
    parts_.push_back(std::move(part));
    parts_.pop_front();
    exchange_.reset();
    host_ = std::move(host);
  }
  form_is_decided_ = true;  // last: where memory was short, the next step decides
}

std::string OptimizerState::form() const {
  if (group_->num_workers() == 1 || local_) return {};
  if (sums_between_hosts())
    return "each worker updates a part of its host's copy, in memory that the host's workers map; sums and factors "
           "travel between hosts";
  if (host_) return "each worker updates a part of one copy, in memory that all workers map";
  if (sliced_) return "each worker updates a part of all blocks, and has the slots of this part alone";
  if (!form_is_decided_) return "the first step decides whether workers share the update";
  if (!exchange_) return "every worker updates all, because sums are added by a reducer of the program's own";
  return fmt::format("every worker updates all, because {}", why_not_shared_);
}

OptimizerState::FormOfVariable OptimizerState::form_of(std::size_t i) const {
  if (group_->num_workers() == 1 || local_ || !form_is_decided_) return {};
  if (row_exchange_ && row_exchange_->has(i)) return {"rows", row_exchange_->bytes_sent(i)};
  using enum Travelled::As;
  if (host_ && !sums_between_hosts()) return {"host memory", 0};
  if (host_) {
    const auto travelled = host_->gradients().travelled(i);
    if (travelled.as == kNothing) return {"nothing in the last step", 0};
    return {fmt::format("host memory, {} between hosts", travelled.as == kFactors ? "factors" : "sums"),
            travelled.bytes};
  }
  if (sliced_) {
    if (!sliced_->has_sent()) return {};
    const auto travelled = sliced_->travelled(i);
    if (travelled.as == kNothing) return {"nothing in the last step", 0};
    return {travelled.as == kFactors ? "slices, from factors" : "slices", travelled.bytes};
  }
  if (!exchange_ || !exchange_->takes(i)) return {"sums, one by one", -1};
  const auto travelled = exchange_->travelled(i);
  if (travelled.as == kNothing) return {"nothing in the last step", 0};
  if (travelled.as == kFactors) return {"factors", travelled.bytes};
  const char* const numbers = travelled.is_rounded ? " as bfloat16" : "";
  return {fmt::format("sums{}{}", numbers, travelled.during_backward ? ", during backward" : ""), travelled.bytes};
}

std::string OptimizerState::report() const {
  if (sliced_) return sliced_->report();
  return exchange_ ? exchange_->report() : std::string();
}

void OptimizerState::begin_exchange(const StepOptions& options) {
  if (!local_ && !group_->reduces_in_tree_order()) gradients_.begin_exchange(num_leaves());
  begin_rows();
  const auto present = [&] {
    std::vector<char> of_step(variables_.size());
    for (std::size_t i = 0; i < of_step.size(); ++i)
      of_step[i] = gradients_.present(i) && !gradients_.in_rows(i) ? 1 : 0;
    return of_step;
  };
  std::vector<GradientsOnWorkers> not_in_rows;
  if (gradients_.has_rows()) {
    not_in_rows = gradients_.told().gradients;
    for (GradientsOnWorkers& one : not_in_rows) {
      if (one.in_rows) one = {};
    }
  }
  const auto& told = gradients_.has_rows() ? not_in_rows : gradients_.told().gradients;
  if (host_) {
    host_->begin_step(present());
    // A gradient that is not finite is looked for in all blocks.
    host_->gradients().begin_step(told, parts_.front().update, options.check_finite || options.skip_non_finite);
    return;
  }
  if (sliced_) sliced_->begin_step(gradients_.told(), present());
  if (exchange_) exchange_->begin_step(told, gradients_.told().reports);
  expect_factors();
  if (local_ || group_->num_workers() == 1) return;
  // Another optimizer of the same variables may be shared.
  for (const auto& variable : variables_) {
    if (variable->is_in_halves()) variable->as_mirrored().leave_halves();
  }
}

void OptimizerState::begin_rows() {
  if (row_exchange_) row_exchange_->exchange(gradients_, gradients_.told().gradients);
  for (std::size_t i = 0; host_ && gradients_.has_rows() && i < variables_.size(); ++i) {
    if (!gradients_.in_rows(i)) continue;
    // A step writes all of a value from one half into the other. Rows are written where they are.
    variables_[i]->as_mirrored().leave_halves();
    for (std::size_t s = first_slot_[i]; s < first_slot_[i + 1]; ++s) slots_[s].state().as_mirrored().leave_halves();
  }
}

void OptimizerState::add_rows(std::size_t i, int64_t step) {
  const Coefficients coefficients = rules_[rule_of_[i]]->row_coefficients(step);
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    const auto first = static_cast<int64_t>(p);  // its replica, where variables are trained locally
    const ReplicaRange replicas = local_ ? ReplicaRange{first, 1} : ReplicaRange{0, group_->num_local_replicas()};
    part.update.set_coefficients(i, nullptr);
    part.rows.add(i, part.update.targets()[i], first, coefficients, rows_of(i, replicas));
  }
}

std::vector<std::shared_ptr<const Rows>> OptimizerState::rows_of(std::size_t i, const ReplicaRange& replicas) const {
  if (row_exchange_) return row_exchange_->rows(i);
  std::vector<std::shared_ptr<const Rows>> rows;
  for (int64_t r = replicas.first; r < replicas.first + replicas.count; ++r) rows.push_back(gradients_.own_rows(i, r));
  return rows;
}

void OptimizerState::expect_factors() {
  if (host_ || sliced_ || !(exchange_ ? exchange_->has_factors() : gradients_.has_factors())) return;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (exchange_ ? !exchange_->has_factors(i) : !gradients_.has_factors(i)) continue;
    for (Part& part : parts_) part.update.expect_factors(i);
  }
}

void OptimizerState::reduce(int lane, int num_lanes) {
  for (auto i = static_cast<std::size_t>(lane); i < variables_.size(); i += static_cast<std::size_t>(num_lanes)) {
    if (gradients_.in_rows(i)) continue;
    if (!exchange_ || !exchange_->takes(i)) gradients_.reduce(i, *group_);
  }
}

void OptimizerState::tell_counts(Proposal& mine) const {
  // Each worker computes a part of all with its own counts: where they differed, nobody would find it later.
  Digest counts = digest_;
  int64_t fewest = INT64_MAX;
  int64_t most = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!gradients_.present(i)) continue;
    counts = counts.with(steps_[i]);
    fewest = std::min(fewest, steps_[i]);
    most = std::max(most, steps_[i]);
  }
  mine.signature = counts.value();
  mine.detail = fmt::format("the update of '{}', whose variables it has updated {} to {} times", name_, fewest, most);
}

void OptimizerState::vote() {
  FusedUpdate& update = parts_.front().update;
  if (host_) host_->vote(update);
  if (sliced_ && !is_skipped_) sliced_->vote(update, [this](Proposal& mine) { tell_counts(mine); });
}

void OptimizerState::end_pack() {
  agree_on_call(group_->rounds(), {.call = "gradients of an update", .name = name_, .step = group_->step()},
                [this](Proposal& mine) { tell_counts(mine); });
  if (sums_between_hosts()) return host_->gradients().send_factors();
  host_->gradients().set_leaves(gradients_);
}

SumsBetweenHosts* OptimizerState::sums_between_hosts() const {
  return host_ ? host_->gradients().sums_between_hosts() : nullptr;
}

bool OptimizerState::exchanges() const { return exchange_ || sliced_ || sums_between_hosts(); }

void OptimizerState::gather_slots() {
  if (sliced_) sliced_->slots().gather();
}

SlicedSlots* OptimizerState::sliced_slots() { return sliced_ ? &sliced_->slots() : nullptr; }

void OptimizerState::prepare(int lane, int num_lanes, bool is_measured) {
  Part& part = parts_.front();
  sliced_->prepare(part.update, gradients_, lane, num_lanes, part.clip, is_measured);
}

void OptimizerState::check_clip_value(const StepOptions& options) {
  if (!options.clip_value) return;
  if (!(*options.clip_value > 0)) {
    throw UsageError("LS-OPTION", fmt::format(".clip_value is {}", *options.clip_value),
                     "give a positive number, or leave it out");
  }
  if (options.clip_global_norm) {
    throw UsageError("LS-OPTION", ".clip_value and .clip_global_norm are both set", "choose one of them");
  }
}

void OptimizerState::agree_on_rules() {
  const auto check = [&](Proposal&) {
    for (const Part& part : parts_) part.update.require_rules();
  };
  Proposal mine{.call = "rules of an update", .name = name_, .step = group_->step()};
  if (local_) return check(mine);
  agree_on_call(group_->rounds(), std::move(mine), check);
}

void OptimizerState::share_norm() {
  if (sliced_) return sliced_->share_squares(parts_.front().update);
  if (!host_) return;
  agree_on_call(group_->rounds(), {.call = "the norm of an update", .name = name_, .step = group_->step()},
                [](Proposal&) {});
}

void OptimizerState::finish_sums() {
  if (SumsBetweenHosts* const sums = sums_between_hosts()) {
    sums->send_sums();
    host_->gradients().set_leaves(gradients_);
  }
  if (!exchange_) return;
  exchange_->send_sums();
  exchange_->set_leaves(gradients_);
}

}  // namespace lockstep::internal
