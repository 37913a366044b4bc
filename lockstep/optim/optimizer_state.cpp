// One optimizer step, from the replicas' gradients to new weights.
// Walk: optim/gradient_table.cpp -> here -> optim/fused_update.cpp
#include "lockstep/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/component_table.h"
#include "lockstep/variable/mirrored_state.h"

namespace lockstep::internal {

/// The meeting of all replicas in Optimizer::step.
class StepMeeting final : public Meeting {
 public:
  StepMeeting(OptimizerState& optimizer, const StepOptions& options, const std::source_location& place)
      : optimizer_(optimizer),
        options_(options),
        place_(place),
        measures_(options.clip_global_norm || options.check_finite || options.skip_non_finite) {}

  const char* what() const override { return "optimizer.step"; }
  std::string_view name() const override { return optimizer_.name_; }
  uint64_t signature() const override {
    const double clip = options_.clip_global_norm.value_or(0);
    const uint64_t flags = (options_.check_finite ? 1u : 0u) + (options_.loss_scaled_by_hand ? 2u : 0u) +
                           (options_.gradients_changed_on_purpose ? 4u : 0u) + (options_.skip_non_finite ? 8u : 0u);
    const Digest own = optimizer_.digest_.with(flags).with(clip).with(options_.clip_value.value_or(0));
    return with_settings(own, optimizer_.rules_).value();
  }
  std::string describe() const override {
    std::vector<std::string> options;
    if (options_.clip_global_norm) options.push_back(fmt::format("clip_global_norm = {}", *options_.clip_global_norm));
    if (options_.clip_value) options.push_back(fmt::format("clip_value = {}", *options_.clip_value));
    if (options_.check_finite) options.emplace_back("check_finite");
    if (options_.loss_scaled_by_hand) options.emplace_back("loss_scaled_by_hand");
    if (options_.gradients_changed_on_purpose) options.emplace_back("gradients_changed_on_purpose");
    if (options_.skip_non_finite) options.emplace_back("skip_non_finite");
    return fmt::format("optimizer.step({}) of '{}' for '{}' and {} more variables, {}", fmt::join(options, ", "),
                       optimizer_.name_, optimizer_.variables_.front()->name(), optimizer_.variables_.size() - 1,
                       text_of(optimizer_.rules_));
  }
  std::source_location place() const override { return place_; }

  std::span<const Stage> stages() const override {
    using Self = StepMeeting;
    const bool reduces = !optimizer_.local_ && !optimizer_.group_->reduces_in_tree_order();
    if (optimizer_.exchange_) stages_.push_back(on_each_lane<&Self::compare>("compare"));
    stages_.push_back(once<&Self::begin>("begin"));
    const bool across = optimizer_.group_->num_workers() > 1;
    if (reduces && !across) stages_.push_back(on_each_lane<&Self::reduce>("reduce"));
    if (optimizer_.exchange_ || optimizer_.host_ || optimizer_.sliced_) {
      stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::pack>>("pack"));
      stages_.push_back(once<&Self::or_end_run<&Self::send>>("send"));
    }
    // In the first step some of what follows may turn out not to be needed.
    const bool may_have_several_hosts = optimizer_.sums_between_hosts() || !optimizer_.form_is_decided_;
    if (may_have_several_hosts) {
      stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::combine>>("combine"));
      stages_.push_back(once<&Self::or_end_run<&Self::send_partial_sums>>("send partial sums"));
    }
    if (optimizer_.exchange_ || may_have_several_hosts) {
      stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::add>>("add"));
      stages_.push_back(once<&Self::or_end_run<&Self::send_sums>>("send sums"));
      if (optimizer_.asked_form_.wire != WireFormat::kExact) stages_.push_back(on_each_lane<&Self::unpack>("unpack"));
    }
    if (reduces && across && !optimizer_.host_ && !optimizer_.sliced_)
      stages_.push_back(once<&Self::or_end_run<&Self::reduce_across>>("reduce across workers"));
    if (measures_) {
      stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::measure>>("measure"));
      stages_.push_back(once<&Self::or_end_run<&Self::check>>("check"));
    }
    if (optimizer_.has_own_rules()) {
      stages_.push_back(on_each_lane<&Self::call_rules>("call rules"));
      stages_.push_back(once<&Self::or_end_run<&Self::agree_on_rules>>("agree on rules"));
    }
    if (optimizer_.sliced_) {
      stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::prepare>>("prepare"));
      stages_.push_back(once<&Self::or_end_run<&Self::vote>>("vote"));
    }
    stages_.push_back(on_each_lane<&Self::lane_or_end_run<&Self::update>>("update"));
    if (optimizer_.host_ || !optimizer_.form_is_decided_) {
      stages_.push_back(once<&Self::or_end_run<&Self::vote>>("vote"));
      stages_.push_back(on_each_lane<&Self::move>("move"));
    }
    stages_.push_back(on_each_lane<&Self::settle>("settle"));
    stages_.push_back(once<&Self::end>("end"));
    return {stages_.data(), stages_.size()};
  }

 private:
  // Stages that the other workers need for an exchange, or after the last one. See Rounds::or_end_run.
  template <auto Member>
  void or_end_run() {
    if (!optimizer_.exchanges()) return (this->*Member)();
    optimizer_.group_->rounds().or_end_run([&] { (this->*Member)(); });
  }
  template <auto Member>
  void lane_or_end_run(int lane, int num_lanes) {
    if (!optimizer_.exchanges()) return (this->*Member)(lane, num_lanes);
    optimizer_.group_->rounds().or_end_run([&] { (this->*Member)(lane, num_lanes); });
  }

  void compare(int lane, int) { optimizer_.exchange_->compare(optimizer_.gradients_, lane); }
  void begin() {
    // In each form of several workers it takes decisions for later steps too: how memory is laid out, and who has it.
    if (optimizer_.local_) return optimizer_.begin_step(options_);
    optimizer_.group_->rounds().or_end_run([&] { optimizer_.begin_step(options_); });
  }
  void reduce(int lane, int num_lanes) { optimizer_.reduce(lane, num_lanes); }
  void pack(int lane, int num_lanes) {
    if (optimizer_.host_) return optimizer_.host_->gradients().pack(optimizer_.gradients_, lane, num_lanes);
    if (optimizer_.sliced_) return optimizer_.sliced_->pack(optimizer_.gradients_, lane, num_lanes);
    optimizer_.exchange_->pack(optimizer_.gradients_, lane, num_lanes);
  }
  void send() {
    if (optimizer_.host_) return optimizer_.end_pack();
    if (optimizer_.sliced_) return optimizer_.sliced_->send(optimizer_.gradients_);
    optimizer_.exchange_->send(optimizer_.gradients_);
  }
  void combine(int lane, int num_lanes) {
    if (SumsBetweenHosts* const sums = optimizer_.sums_between_hosts()) sums->combine(lane, num_lanes);
  }
  void send_partial_sums() {
    if (SumsBetweenHosts* const sums = optimizer_.sums_between_hosts()) sums->send_partial_sums();
  }
  void add(int lane, int num_lanes) {
    if (optimizer_.exchange_) optimizer_.exchange_->add(lane, num_lanes);
    if (SumsBetweenHosts* const sums = optimizer_.sums_between_hosts()) sums->add(lane, num_lanes);
  }
  void send_sums() { optimizer_.finish_sums(); }
  void unpack(int lane, int num_lanes) {
    if (optimizer_.exchange_) optimizer_.exchange_->unpack(lane, num_lanes);
  }
  void reduce_across() {
    if (!optimizer_.host_) optimizer_.reduce(0, 1);
  }
  void measure(int lane, int) {
    optimizer_.for_each_part(lane, [&](OptimizerState::Part& part, int own_lane) {
      part.update.measure(optimizer_.gradients_, own_lane);
      part.rows.measure(own_lane);
    });
  }
  void check() {
    optimizer_.share_norm();
    optimizer_.check_finite(options_);
    if (options_.clip_global_norm) optimizer_.clip_to(*options_.clip_global_norm);
  }
  void call_rules(int lane, int) {
    optimizer_.for_each_part(lane, [&](OptimizerState::Part& part, int own_lane) {
      part.update.call_rules(optimizer_.gradients_, own_lane, part.clip, measures_);
    });
  }
  void agree_on_rules() { optimizer_.agree_on_rules(); }
  void prepare(int lane, int num_lanes) {
    if (!optimizer_.is_skipped_) optimizer_.prepare(lane, num_lanes, measures_);
  }
  void update(int lane, int num_lanes) {
    const bool is_measured = measures_ || optimizer_.sliced_;  // or prepare() has measured
    optimizer_.for_each_part(lane, [&](OptimizerState::Part& part, int own_lane) {
      part.update.update(optimizer_.gradients_, own_lane, part.clip, is_measured);
    });
    if (optimizer_.sliced_ && !optimizer_.is_skipped_) optimizer_.sliced_->commit(lane, num_lanes);
  }
  void vote() { optimizer_.vote(); }
  void move(int lane, int num_lanes) {
    if (optimizer_.host_) optimizer_.host_->move(optimizer_.parts_.front().update, lane, num_lanes);
  }
  void settle(int lane, int) {
    // Rows are written where they are: here nothing can fail any more, on this worker or another.
    optimizer_.for_each_part(lane,
                             [](OptimizerState::Part& part, int own_lane) { part.rows.update(own_lane, part.clip); });
    optimizer_.look_at_gradients(lane);
    const LanePlan& plan = optimizer_.group_->plan();
    for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) optimizer_.settle(plan.first_replica_of(lane) + k);
  }
  void end() { optimizer_.end_step(); }

  OptimizerState& optimizer_;
  const StepOptions options_;
  const std::source_location place_;
  const bool measures_;
  mutable c10::SmallVector<Stage, 16> stages_;  // of the leading meeting
};

StepInfo OptimizerState::step(const ReplicaContext& context, const StepOptions& options,
                              const std::source_location& place) {
  check_context(context, "optimizer.step");
  if (group_->evaluating()) {
    throw UsageError("LS-INSIDE-EVALUATE", "optimizer.step was called inside evaluate()",
                     "train inside run(); evaluate() has no gradients");
  }
  if (options.clip_global_norm && !(*options.clip_global_norm > 0)) {
    throw UsageError("LS-OPTION", fmt::format(".clip_global_norm is {}", *options.clip_global_norm),
                     "give a positive norm, or leave it out");
  }
  if (counts_->stand_ins > 0) {
    for (const auto& variable : variables_) variable->require_own_value("optimizer.step");
    for (const Variable& slot : slots_) slot.state().require_own_value("optimizer.step");
  }
  check_clip_value(options);
  const int64_t r = ContextAccess::local_index(context);
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  const ScaledBackwards backwards = ContextAccess::scaled_backwards_since(context, replica.consumed);
  const bool is_empty = ContextAccess::has_empty_part(context);
  gradients_.collect(r, backwards.weightless(), backwards.had_empty_part() || is_empty);
  replica.changed = watch_.changed(r);
  replica.unweighed = is_empty ? std::nullopt : watch_.unweighed(r);  // a replica without samples may have no loss
  replica.consumed = ContextAccess::scaled_backwards(context);
  replica.drops_next = std::exchange(replica.dropped, false);
  StepMeeting meeting(*this, options, place);
  group_->meet(context, meeting);
  watch_.end_step(r);
  if (kAutocastCachePerThread) forget_autocast_weights();
  return parts_[local_ ? static_cast<std::size_t>(r) : 0].info;
}

template <class Fn>
void OptimizerState::for_each_part(int lane, const Fn& fn) {
  if (!local_) return fn(parts_.front(), lane);
  const LanePlan& plan = group_->plan();
  for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) {
    fn(parts_[static_cast<std::size_t>(plan.first_replica_of(lane) + k)], 0);
  }
}

void OptimizerState::clip_to(double norm) {
  // torch::nn::utils::clip_grad_norm_'s factor. One that is NaN stays NaN: a comparison with it is false.
  for (Part& part : parts_) {
    const double factor = norm / (part.factor * part.global_norm() + 1e-6);
    part.clip.factor = part.factor * (factor > 1 ? 1 : factor);
  }
}

void OptimizerState::check_context(const ReplicaContext& context, const char* call) const {
  ContextAccess::check_is_current(context, call);
  if (&ContextAccess::group(context) == group_.get()) return;
  throw UsageError("LS-OTHER-STRATEGY", fmt::format("{} was given a context of another strategy", call),
                   "call it in runs of the strategy that made the optimizer");
}

void OptimizerState::begin_step(const StepOptions& options) {
  if (schedule_error_) std::rethrow_exception(schedule_error_);
  gradients_.agree_on_presence(*group_, !local_ && group_->num_workers() > 1, report());
  gradients_.log_absent();
  report_findings(options);
  is_skipped_ = false;
  decide_form();
  begin_exchange(options);
  // Most variables have been updated equally often: their numbers are computed once.
  coefficients_.clear();
  for (Part& part : parts_) part.rows.begin(local_ ? 1 : group_->plan().num_lanes());
  int64_t known_step = -1;
  std::size_t known_rule = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!gradients_.present(i)) {
      for (Part& part : parts_) part.update.set_coefficients(i, nullptr);
      continue;
    }
    const int64_t next = steps_[i] + 1;
    if (gradients_.in_rows(i)) {
      add_rows(i, next);
      continue;
    }
    if (next != known_step || rule_of_[i] != known_rule) {
      known_step = next;
      known_rule = rule_of_[i];
      coefficients_.push_back(rules_[known_rule]->coefficients(next));
    }
    for (Part& part : parts_) part.update.set_coefficients(i, &coefficients_.back());
  }
  for (Part& part : parts_) {
    part.clip = {.factor = part.factor};
    if (options.clip_value) {
      part.clip.most = *options.clip_value;
      part.update.expect_limit();
    }
    part.update.begin_step();
  }
}

void OptimizerState::settle(int64_t r) {
  gradients_.components().for_each(OfSettle(), r, [&](std::size_t i, Component& component) {
    if (updates(i)) {
      component.updated();
      if (host_) component.moved();
    }
    gradients_.release(i, r);
  });
  gradients_.release_kept(r);
}

void OptimizerState::end_step() {
  bool applied = false;
  const int64_t applied_before = applied_steps();
  const bool something_kept = local_ || counts_->written > 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!updates(i)) continue;
    ++steps_[i];
    applied = true;
    if (!something_kept) continue;
    variables_[i]->keep_step();
    for (std::size_t s = first_slot_[i]; s < first_slot_[i + 1]; ++s) slots_[s].state().keep_step();
    if (before_) before_->steps[i] = steps_[i];
  }
  gradients_.end_exchange();
  if (applied) {
    forget_autocast_weights();
    extra_steps_ = 0;
    extra_steps_ = applied_before + 1 - applied_steps();
    if (before_) before_->extra_steps = extra_steps_;
    follow_schedules();
  }
  for (Part& part : parts_) {
    if (!is_skipped_) part.info.global_norm = part.factor * part.global_norm();
    part.info.applied = applied;
  }
  report_not_finite();
  auto foreign = parts_.front().rows.take_foreign_writes();
  for (Part& part : parts_) part.rows.skip();
  if (local_) return;  // foreign writes are looked for where replicas must be equal
  if (!host_) {        // which has looked for those of its own
    const auto others = parts_.front().update.take_foreign_writes();
    foreign.insert(foreign.end(), others.begin(), others.end());
    std::ranges::sort(foreign);
  }
  for (const auto& [i, copy] : foreign) variables_[i]->as_mirrored().damaged_in_memory(copy);
  if (!foreign.empty()) variables_[foreign.front().target]->require_sound();  // throws, in every replica
}

}  // namespace lockstep::internal
