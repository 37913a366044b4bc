// The order of events in a step: each replica notes its gradients, and all meet. (In the first step of several workers
// they meet once more before that, and the workers choose the optimizer's form.) The leading replica's meeting carries
// out the form's stages. begin() tells the other workers what gradients there are, and lets the form lay out what
// travels; stages of the form bring the leaves of the sum here; the norm is measured where something depends on it;
// rules of the program's own compute their values aside, and all agree on them; the update writes new values, and the
// form makes them valid; settle() moves version counters and drops gradients; end() counts the step.
#include "lockstep/optim/optimizer_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/forms/stages.h"
#include "lockstep/optim/rules/option_checks.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/component_table.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

namespace {

/// Rows are kept where this process updates all of a variable, from sums in tree order.
SparseSupport sparse_support(const ReplicaGroup& group, const GroupRule& rule, bool slices) {
  SparseSupport support = rule.sparse();
  const bool has_rows = group.reducer().in_tree_order() && !slices;
  if (!support.rows || has_rows) return support;
  // Sums of squares of a dense gradient have another order: slots would decide about bits.
  support = {.rows = false, .dense = support.dense && !slices, .refused = {}};
  support.refused = fmt::format("{} with {}", rule.name(), slices ? "sliced slots" : "a reducer of one's own");
  return support;
}

}  // namespace

OptimizerStep::OptimizerStep(const OptimizerSetup& setup, std::vector<UpdateTarget> targets, Digest digest,
                             const std::vector<std::vector<double>>& initial, OptimizerCounts& counts)
    : work_(setup.group, setup.name, std::move(targets),
            [&counts, group = setup.group.get(), slices = setup.slots == Slots::kSliced](std::size_t i) {
              return sparse_support(*group, counts.rule_of(i), slices);
            }),
      digest_(digest),
      counts_(counts),
      asked_(setup.asked),
      findings_(work_),
      factored_(work_.variables, setup.factoring) {
  work_.tell_counts = [this](Proposal& mine) { tell_counts(mine); };
  form_ = form_at_once(work_, asked_, setup.slots, initial);
}

uint64_t StepMeeting::signature() const {
  const uint64_t flags = (options_.check_finite ? 1u : 0u) + (options_.loss_scaled_by_hand ? 2u : 0u) +
                         (options_.gradients_changed_on_purpose ? 4u : 0u) + (options_.skip_non_finite ? 8u : 0u);
  const Digest own =
      step_.digest_.with(flags).with(options_.clip_global_norm.value_or(0)).with(options_.clip_value.value_or(0));
  return with_settings(own, step_.counts_.rules()).value();
}

std::string StepMeeting::describe() const {
  std::vector<std::string> options;
  if (options_.clip_global_norm) options.push_back(fmt::format("clip_global_norm = {}", *options_.clip_global_norm));
  if (options_.clip_value) options.push_back(fmt::format("clip_value = {}", *options_.clip_value));
  if (options_.check_finite) options.emplace_back("check_finite");
  if (options_.loss_scaled_by_hand) options.emplace_back("loss_scaled_by_hand");
  if (options_.gradients_changed_on_purpose) options.emplace_back("gradients_changed_on_purpose");
  if (options_.skip_non_finite) options.emplace_back("skip_non_finite");
  const UpdateWork& work = step_.work_;
  return fmt::format("optimizer.step({}) of '{}' for '{}' and {} more variables, {}", fmt::join(options, ", "),
                     work.name, work.variables.front()->name(), work.variables.size() - 1,
                     text_of(step_.counts_.rules()));
}

std::span<const Stage> StepMeeting::stages() const {
  static constexpr std::array kDecide{once<&StepMeeting::decide_form>("decide form")};
  if (!step_.form_) return kDecide;
  return step_.form_->stages().of(measures(), step_.work_.parts.front().update.has_own_rules());
}

StepInfo OptimizerStep::step(const ReplicaContext& context, const StepOptions& options,
                             const std::source_location& place) {
  check_context(context, "optimizer.step");
  if (work_.group->evaluating()) {
    throw UsageError("LS-INSIDE-EVALUATE", "optimizer.step was called inside evaluate()",
                     "train inside run(); evaluate() has no gradients");
  }
  check(options);
  if (work_.variables.front()->counts()->stand_ins > 0) {
    for (const UpdateTarget& target : work_.targets) {
      target.variable->require_own_value("optimizer.step");
      for (const auto& slot : target.slots) slot->require_own_value("optimizer.step");
    }
  }
  // Before the meeting: a worker without a rate comes with another one than the others, and that would be said instead.
  counts_.require_rates();
  const int64_t r = ContextAccess::local_index(context);
  findings_.collect(context, r);
  StepMeeting meeting(*this, options, place);
  if (!form_) work_.group->meet(context, meeting);
  work_.group->meet(context, meeting);
  findings_.end_step(r);
  if (kAutocastCachePerThread) forget_autocast_weights();
  return work_.parts[work_.local ? static_cast<std::size_t>(r) : 0].info;
}

void OptimizerStep::zero_grad(const ReplicaContext& context) {
  check_context(context, "optimizer.zero_grad");
  const int64_t r = ContextAccess::local_index(context);
  for (std::size_t i = 0; i < work_.variables.size(); ++i) work_.gradients.release(i, r);
  findings_.drop(context, r);
}

void OptimizerStep::check_context(const ReplicaContext& context, const char* call) const {
  ContextAccess::check_is_current(context, call);
  if (&ContextAccess::group(context) == work_.group.get()) return;
  throw UsageError("LS-OTHER-STRATEGY", fmt::format("{} was given a context of another strategy", call),
                   "call it in runs of the strategy that made the optimizer");
}

std::string OptimizerStep::form() const {
  return form_ ? form_->text() : "the first step decides whether workers share the update";
}

FormOfVariable OptimizerStep::form_of(std::size_t i) const {
  if (!form_ || work_.group->num_workers() == 1 || work_.local) return {};
  if (work_.row_exchange->has(i)) return {"rows", work_.row_exchange->bytes_sent(i)};
  return form_->of_variable(i);
}

void OptimizerStep::decide_form() { form_ = agree_on_form(work_, asked_); }

void OptimizerStep::begin(const StepOptions& options, bool measures) {
  ReplicaGroup& group = *work_.group;
  GradientTable& gradients = work_.gradients;
  gradients.agree_on_presence(group, !work_.local && group.num_workers() > 1, form_->report());
  gradients.log_absent();
  findings_.report(options);
  counts_.report_missing_schedules();
  work_.is_skipped = false;
  work_.measures = measures;
  if (!work_.local && !group.reduces_in_tree_order()) gradients.begin_exchange(form_->num_leaves());
  if (work_.row_exchange) work_.row_exchange->exchange(gradients, gradients.told().gradients);
  form_->begin_step(options);
  // Most variables have been updated equally often: their numbers are computed once.
  coefficients_.clear();
  for (UpdatePart& part : work_.parts) part.rows.begin(work_.local ? 1 : group.plan().num_lanes());
  int64_t known_step = -1;
  const GroupRule* known_rule = nullptr;
  for (std::size_t i = 0; i < work_.variables.size(); ++i) {
    if (!gradients.present(i)) {
      for (UpdatePart& part : work_.parts) part.update.set_coefficients(i, nullptr);
      continue;
    }
    const int64_t next = counts_.steps(i) + 1;
    if (gradients.in_rows(i)) {
      add_rows(i, next);
      continue;
    }
    if (const GroupRule& rule = counts_.rule_of(i); next != known_step || &rule != known_rule) {
      known_step = next;
      known_rule = &rule;
      coefficients_.push_back(rule.coefficients(next));
    }
    for (UpdatePart& part : work_.parts) part.update.set_coefficients(i, &coefficients_.back());
  }
  for (UpdatePart& part : work_.parts) {
    part.clip = {.factor = part.factor};
    if (options.clip_value) {
      part.clip.most = *options.clip_value;
      part.update.expect_limit();
    }
    part.update.begin_step();
  }
}

void OptimizerStep::add_rows(std::size_t i, int64_t step) {
  const Coefficients coefficients = counts_.rule_of(i).row_coefficients(step);
  for (std::size_t p = 0; p < work_.parts.size(); ++p) {
    UpdatePart& part = work_.parts[p];
    const auto first = static_cast<int64_t>(p);  // its replica, where variables are trained locally
    const ReplicaRange replicas =
        work_.local ? ReplicaRange{first, 1} : ReplicaRange{0, work_.group->num_local_replicas()};
    part.update.set_coefficients(i, nullptr);
    part.rows.add(i, part.update.targets()[i], first, coefficients, rows_of(i, replicas));
  }
}

std::vector<std::shared_ptr<const Rows>> OptimizerStep::rows_of(std::size_t i, const ReplicaRange& replicas) const {
  if (work_.row_exchange) return work_.row_exchange->rows(i);
  std::vector<std::shared_ptr<const Rows>> rows;
  for (int64_t r = replicas.first; r < replicas.first + replicas.count; ++r)
    rows.push_back(work_.gradients.own_rows(i, r));
  return rows;
}

void OptimizerStep::use_norm(const StepOptions& options) {
  form_->share_norm();
  findings_.check_finite(options, *form_);
  if (options.clip_global_norm) clip_to(*options.clip_global_norm);
}

void OptimizerStep::clip_to(double norm) {
  for (UpdatePart& part : work_.parts)
    part.clip.factor = part.factor * clip_factor(part.factor * part.global_norm(), norm);
}

void OptimizerStep::tell_counts(Proposal& mine) const {
  // Each worker computes a part of all with its own counts: where they differed, nobody would find it later.
  Digest counts = digest_;
  int64_t fewest = INT64_MAX;
  int64_t most = 0;
  for (std::size_t i = 0; i < work_.variables.size(); ++i) {
    if (!work_.gradients.present(i)) continue;
    counts = counts.with(counts_.steps(i));
    fewest = std::min(fewest, counts_.steps(i));
    most = std::max(most, counts_.steps(i));
  }
  mine.signature = counts.value();
  mine.detail =
      fmt::format("the update of '{}', whose variables it has updated {} to {} times", work_.name, fewest, most);
}

void OptimizerStep::settle(int lane) {
  // Rows are written where they are: here nothing can fail any more, on this worker or another.
  work_.for_each_part(lane, [](UpdatePart& part, int own_lane) { part.rows.update(own_lane, part.clip); });
  findings_.look_at_gradients(lane);
  const LanePlan& plan = work_.group->plan();
  for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) settle_replica(plan.first_replica_of(lane) + k);
}

void OptimizerStep::settle_replica(int64_t r) {
  const bool moves_values = form_->moves_values();
  work_.gradients.components().for_each(OfSettle(), r, [&](std::size_t i, Component& component) {
    if (work_.updates(i)) {
      component.updated();
      if (moves_values) component.moved();
    }
    work_.gradients.release(i, r);
  });
  work_.gradients.release_kept(r);
}

void OptimizerStep::end() {
  const bool something_kept = work_.local || work_.variables.front()->counts()->written > 0;
  for (std::size_t i = 0; something_kept && i < work_.targets.size(); ++i) {
    if (!work_.updates(i)) continue;
    work_.variables[i]->keep_step();
    for (const auto& slot : work_.targets[i].slots) slot->keep_step();
  }
  const bool applied = counts_.count_step([&](std::size_t i) { return work_.updates(i); });
  work_.gradients.end_exchange();
  if (applied) forget_autocast_weights();
  for (UpdatePart& part : work_.parts) {
    if (!work_.is_skipped) part.info.global_norm = part.factor * part.global_norm();
    part.info.applied = applied;
  }
  findings_.report_not_finite();
  require_no_foreign_write();
}

void OptimizerStep::require_no_foreign_write() {
  UpdatePart& first = work_.parts.front();
  auto foreign = first.rows.take_foreign_writes();
  for (UpdatePart& part : work_.parts) part.rows.skip();
  if (work_.local) return;       // foreign writes are looked for where replicas must be equal
  if (!form_->moves_values()) {  // which has looked for those of its own
    const auto others = first.update.take_foreign_writes();
    foreign.insert(foreign.end(), others.begin(), others.end());
    std::ranges::sort(foreign);
  }
  for (const auto& [i, copy] : foreign) work_.variables[i]->as_mirrored().damaged_in_memory(copy);
  if (!foreign.empty()) work_.variables[foreign.front().target]->require_sound();  // throws, in every replica
}

}  // namespace lockstep::internal::optim
