// One optimizer step, from the replicas' gradients to new weights.
#include "lockstep/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/component_table.h"

namespace lockstep::internal {

namespace {

std::vector<std::shared_ptr<VariableState>> all_variables(const std::vector<RuleGroup>& groups) {
  std::vector<std::shared_ptr<VariableState>> all;
  for (const RuleGroup& group : groups) {
    for (const Variable& variable : group.variables) {
      variable.state();  // throws where it is empty
      all.push_back(variable.shared_state());
    }
  }
  return all;
}

void check_variables(const ReplicaGroup& group, const std::vector<std::shared_ptr<VariableState>>& variables) {
  std::set<const VariableState*> seen;
  for (const auto& variable : variables) {
    const auto refuse = [&](const std::string& why, const char* remedy) {
      throw UsageError(fmt::format("an optimizer was given variable '{}', which {}", variable->name(), why), remedy);
    };
    if (variable->group().get() != &group) refuse("belongs to another strategy", "make both with the same strategy");
    if (!seen.insert(variable.get()).second) refuse("stands in it twice", "put each variable into one group");
    const at::ScalarType type = variable->like().scalar_type();
    const bool apart = variable->is_trained_apart();
    if (!(variable->on_write() || apart) || !is_trainable_type(type)) {
      refuse(fmt::format("is {}", variable->on_write() || apart ? c10::toString(type) : "sync-on-read"),
             "give it mirrored floating-point variables, such as a module's parameters");
    }
    if (apart != variables.front()->is_trained_apart()) {
      refuse(fmt::format("is {} and '{}' is not", apart ? "trained apart" : "mirrored", variables.front()->name()),
             "make an optimizer for each kind");
    }
  }
}

/// A slot of a variable: one memory for all replicas, whatever the copies of the variable itself; of one that is
/// trained apart each replica's own.
std::shared_ptr<VariableState> make_slot(const VariableState& variable, const SlotSpec& spec) {
  const at::NoGradGuard no_grad;
  const bool apart = variable.is_trained_apart();
  std::vector<at::Tensor> components;
  for (int64_t r = 0; r < variable.num_components(); ++r) {
    const at::Tensor& like = variable.like();
    const bool own = apart || r == 0;
    components.push_back(own ? at::empty_strided(like.sizes(), like.strides(), like.options()).fill_(spec.initial)
                             : components.front());
  }
  VariableOptions options{.name = variable.name() + "/" + spec.name, .trainable = false};
  options.synchronization = apart ? VariableSynchronization::kOnRead : VariableSynchronization::kOnWrite;
  if (apart) options.aggregation = VariableAggregation::kMean;
  VariableState::Origin origin{.slot = true, .apart = apart};
  if (!variable.devices().empty()) origin.devices = {variable.devices().front()};  // beside the first copy
  return std::make_shared<VariableState>(variable.group(), std::move(options), std::move(components),
                                         std::move(origin));
}

std::vector<UpdateTarget> make_targets(const std::vector<RuleGroup>& groups) {
  std::vector<UpdateTarget> targets;
  for (const RuleGroup& group : groups) {
    for (const Variable& variable : group.variables) {
      UpdateTarget target{variable.shared_state(), {}, group.rule->kind()};
      for (const SlotSpec& spec : group.rule->slots()) target.slots.push_back(make_slot(*target.variable, spec));
      targets.push_back(std::move(target));
    }
  }
  return targets;
}

void set_all(VariableState& variable, const at::Tensor& value) {
  if (variable.on_write()) return variable.write(value);
  for (int64_t r = 0; r < variable.num_components(); ++r) variable.write_component(r, value);
}

}  // namespace

/// What all replicas bring to Optimizer::step.
class StepMeeting final : public Meeting {
 public:
  StepMeeting(OptimizerState& optimizer, const StepOptions& options)
      : optimizer_(optimizer), options_(options), measures_(options.clip_global_norm || options.check_finite) {}

  const char* what() const override { return "optimizer.step"; }
  uint64_t signature() const override {
    uint64_t clip = 0;
    if (options_.clip_global_norm) std::memcpy(&clip, &*options_.clip_global_norm, sizeof clip);
    return (reinterpret_cast<uintptr_t>(&optimizer_) * 2 + (options_.check_finite ? 1 : 0)) * 0x9e3779b97f4a7c15u +
           clip;
  }
  std::string describe() const override {
    const VariableState& first = *optimizer_.variables_.front();
    return fmt::format(
        "optimizer.step({}{}) of the optimizer of '{}'",
        options_.clip_global_norm ? fmt::format("clip_global_norm = {}", *options_.clip_global_norm) : "",
        options_.check_finite ? ", check_finite" : "", first.name());
  }

  void prepare(std::span<Meeting* const>) override {
    optimizer_.begin_step();
    const bool reduces = !optimizer_.apart_ && !optimizer_.group_->reduces_in_tree_order();
    if (reduces) phases_.push_back(Phase::kReduce);
    if (measures_) phases_.push_back(Phase::kMeasure);
    phases_.push_back(Phase::kUpdate);
    phases_.push_back(Phase::kSettle);
  }
  int num_phases() const override { return static_cast<int>(phases_.size()); }
  void work(int phase, int lane, int num_lanes) override {
    switch (phases_[static_cast<std::size_t>(phase)]) {
      case Phase::kReduce: return optimizer_.reduce(lane, num_lanes);
      case Phase::kMeasure:
        return optimizer_.for_each_part(lane, [&](OptimizerState::Part& part, int own_lane) {
          part.update.measure(optimizer_.gradients_, own_lane);
        });
      case Phase::kUpdate:
        return optimizer_.for_each_part(lane, [&](OptimizerState::Part& part, int own_lane) {
          part.update.update(optimizer_.gradients_, own_lane, part.clip);
        });
      case Phase::kSettle: {
        const LanePlan& plan = optimizer_.group_->plan();
        for (int64_t k = 0; k < plan.replicas_per_lane(); ++k) optimizer_.settle(plan.first_replica_of(lane) + k);
      }
    }
  }
  void between(int phase) override {
    switch (phases_[static_cast<std::size_t>(phase)]) {
      case Phase::kMeasure:
        if (options_.check_finite) optimizer_.check_finite_gradients();
        if (options_.clip_global_norm) optimizer_.clip_to(*options_.clip_global_norm);
        break;
      case Phase::kSettle: optimizer_.end_step(); break;
      default: break;
    }
  }

 private:
  enum class Phase { kReduce, kMeasure, kUpdate, kSettle };

  OptimizerState& optimizer_;
  const StepOptions options_;
  const bool measures_;
  c10::SmallVector<Phase, 4> phases_;  // of the leading meeting
};

OptimizerState::OptimizerState(std::shared_ptr<ReplicaGroup> group, std::vector<RuleGroup> groups)
    : group_(std::move(group)),
      variables_(all_variables(groups)),
      steps_(variables_.size(), 0),
      gradients_(variables_, group_->num_local_replicas()),
      apart_(!variables_.empty() && variables_.front()->is_trained_apart()),
      scale_calls_(static_cast<std::size_t>(group_->num_local_replicas())) {
  if (variables_.empty()) throw UsageError("an optimizer was given no variables", "give it at least one");
  check_variables(*group_, variables_);
  const std::vector<UpdateTarget> targets = make_targets(groups);
  for (const UpdateTarget& target : targets) {
    for (const auto& slot : target.slots) slots_.emplace_back(slot);
  }
  const int64_t replicas = group_->num_local_replicas();
  if (apart_) {
    const auto factor = static_cast<double>(group_->num_replicas());
    for (int64_t r = 0; r < replicas; ++r) parts_.push_back({FusedUpdate(targets, {r, 1}, 1), factor});
  } else {
    parts_.push_back({FusedUpdate(targets, {0, replicas}, group_->plan().num_lanes()), 1});
  }
  for (RuleGroup& one : groups) {
    rule_of_.insert(rule_of_.end(), one.variables.size(), rules_.size());
    rules_.push_back(std::move(one.rule));
  }
}

StepInfo OptimizerState::step(const ReplicaContext& context, const StepOptions& options) {
  check_context(context, "optimizer.step");
  if (group_->evaluating()) {
    throw UsageError("optimizer.step was called inside evaluate()", "train inside run(); evaluate() has no gradients");
  }
  if (options.clip_global_norm && !(*options.clip_global_norm > 0)) {
    throw UsageError(fmt::format(".clip_global_norm is {}", *options.clip_global_norm),
                     "give a positive norm, or leave it out");
  }
  if (group_->stand_ins() > 0) {
    for (const auto& variable : variables_) variable->require_own_value("optimizer.step");
  }
  const int64_t r = ContextAccess::local_index(context);
  gradients_.collect(r, is_weightless(context), had_empty_part(context));
  scale_calls_[r] = {ContextAccess::scale_calls(context), ContextAccess::weighted_scale_calls(context)};
  StepMeeting meeting(*this, options);
  group_->meet(context, meeting);
  forget_autocast_weights();
  return parts_[apart_ ? static_cast<std::size_t>(r) : 0].info;
}

template <class Fn>
void OptimizerState::for_each_part(int lane, const Fn& fn) {
  if (!apart_) return fn(parts_.front(), lane);
  const LanePlan& plan = group_->plan();
  for (int64_t k = 0; k < plan.replicas_per_lane(); ++k) {
    fn(parts_[static_cast<std::size_t>(plan.first_replica_of(lane) + k)], 0);
  }
}

void OptimizerState::reduce(int lane, int num_lanes) {
  for (auto i = static_cast<std::size_t>(lane); i < variables_.size(); i += static_cast<std::size_t>(num_lanes)) {
    gradients_.reduce(i, *group_);
  }
}

void OptimizerState::clip_to(double norm) {
  // torch::nn::utils::clip_grad_norm_'s factor.
  for (Part& part : parts_) {
    part.clip = part.factor * std::min(1.0, norm / (part.factor * part.update.global_norm() + 1e-6));
  }
}

void OptimizerState::zero_grad(const ReplicaContext& context) {
  check_context(context, "optimizer.zero_grad");
  const int64_t r = ContextAccess::local_index(context);
  for (std::size_t i = 0; i < variables_.size(); ++i) gradients_.release(i, r);
  scale_calls_[r] = {ContextAccess::scale_calls(context), ContextAccess::weighted_scale_calls(context)};
}

void OptimizerState::check_context(const ReplicaContext& context, const char* call) const {
  ContextAccess::check_is_current(context, call);
  if (&ContextAccess::group(context) == group_.get()) return;
  throw UsageError(fmt::format("{} was given a context of another strategy", call),
                   "call it in runs of the strategy that made the optimizer");
}

bool OptimizerState::is_weightless(const ReplicaContext& context) const {
  const ScaleCalls& before = scale_calls_[ContextAccess::local_index(context)];
  return ContextAccess::scale_calls(context) > before.all &&
         ContextAccess::weighted_scale_calls(context) == before.weighted;
}

bool OptimizerState::had_empty_part(const ReplicaContext& context) const {
  const ScaleCalls& before = scale_calls_[ContextAccess::local_index(context)];
  return ContextAccess::scale_calls(context) - before.all >
         ContextAccess::weighted_scale_calls(context) - before.weighted;
}

void OptimizerState::begin_step() {
  gradients_.check_absent();
  // Most variables have been updated equally often: their numbers are computed once.
  coefficients_.clear();
  if (!apart_ && !group_->reduces_in_tree_order()) gradients_.begin_reduce();
  for (Part& part : parts_) {
    part.clip = part.factor;
    part.update.begin_step();
  }
  int64_t known_step = -1;
  std::size_t known_rule = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!gradients_.present(i)) {
      for (Part& part : parts_) part.update.set_coefficients(i, nullptr);
      continue;
    }
    const int64_t next = steps_[i] + 1;
    if (next != known_step || rule_of_[i] != known_rule) {
      known_step = next;
      known_rule = rule_of_[i];
      coefficients_.push_back(rules_[known_rule]->coefficients(next));
    }
    for (Part& part : parts_) part.update.set_coefficients(i, &coefficients_.back());
  }
}

void OptimizerState::check_finite_gradients() const {
  std::set<std::size_t> bad;
  for (const Part& part : parts_) {
    const std::vector<std::size_t> found = part.update.variables_not_finite();
    bad.insert(found.begin(), found.end());
  }
  if (bad.empty()) return;
  std::vector<std::string> found;
  for (const std::size_t i : bad) {
    std::vector<int64_t> replicas = gradients_.replicas_not_finite(i);
    for (int64_t& replica : replicas) replica += group_->first_replica();
    found.push_back(replicas.empty()
                        ? fmt::format("'{}' (in the sum over replicas)", variables_[i]->name())
                        : fmt::format("'{}' on replica {}", variables_[i]->name(), fmt::join(replicas, ", ")));
    if (found.size() == 4 && bad.size() > 4) {
      found.push_back(fmt::format("and {} more", bad.size() - 4));
      break;
    }
  }
  throw NonFiniteError(fmt::format("step {}: the gradient is not finite for {}; the step was not applied",
                                   group_->step(), fmt::join(found, ", ")),
                       "lower the learning rate, clip the gradient, or look at the samples of this step");
}

void OptimizerState::settle(int64_t r) {
  const FusedUpdate& update = parts_.front().update;
  gradients_.components().for_each(OfSettle(), r, [&](std::size_t i, Component& component) {
    if (update.present(i)) component.updated();
    gradients_.release(i, r);
  });
  gradients_.release_converted(r);
}

void OptimizerState::end_step() {
  bool applied = false;
  const bool something_kept = apart_ || group_->written_variables() > 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!parts_.front().update.present(i)) continue;
    ++steps_[i];
    if (something_kept) variables_[i]->keep_step();
    applied = true;
  }
  if (apart_) {
    for (const Variable& slot : slots_) slot.state().keep_step();
  }
  gradients_.end_reduce();
  for (Part& part : parts_) part.info = {part.factor * part.update.global_norm(), applied};
  if (apart_) return;  // foreign writes are looked for where replicas must be equal
  const auto foreign = parts_.front().update.take_foreign_writes();
  for (const auto& [i, copy] : foreign) variables_[i]->damaged_in_memory(copy);
  if (!foreign.empty()) variables_[foreign.front().target]->require_sound();  // throws, in every replica
}

UpdateRule& OptimizerState::rule(int64_t group) {
  if (group < 0 || group >= num_groups()) {
    throw UsageError(fmt::format("group {} was asked of an optimizer with {}", group, num_groups()),
                     fmt::format("choose a group from 0 to {}", num_groups() - 1));
  }
  return *rules_[group];
}

std::map<std::string, at::Tensor> OptimizerState::state() const {
  std::map<std::string, at::Tensor> result;
  for (const Variable& slot : slots_) result.emplace(slot.name(), slot.state().read());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    result.emplace(variables_[i]->name() + "/step", at::scalar_tensor(steps_[i], at::kLong));
  }
  return result;
}

void OptimizerState::load(const std::map<std::string, at::Tensor>& state) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  const auto find = [&](const std::string& name, c10::IntArrayRef sizes) -> const at::Tensor* {
    known.insert(name);
    const auto found = state.find(name);
    if (found == state.end()) {
      problems.push_back(fmt::format("missing '{}'", name));
      return nullptr;
    }
    if (!found->second.defined() || found->second.sizes() != sizes) {
      problems.push_back(fmt::format("'{}' has not shape [{}]", name, fmt::join(sizes, ", ")));
    }
    return &found->second;
  };
  std::vector<const at::Tensor*> slots;
  std::vector<const at::Tensor*> steps;
  for (const Variable& slot : slots_) slots.push_back(find(slot.name(), slot.sizes()));
  for (const auto& variable : variables_) steps.push_back(find(variable->name() + "/step", {}));
  for (const auto& [name, value] : state) {
    if (!known.contains(name)) problems.push_back(fmt::format("unexpected '{}'", name));
  }
  if (!problems.empty()) {
    throw UsageError(fmt::format("the tensors given to an optimizer do not fit: {}", fmt::join(problems, ", ")),
                     "give exactly the names and shapes that state() gives; nothing was loaded");
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) set_all(slots_[i].state(), *slots[i]);
  for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i] = steps[i]->item<int64_t>();
}

}  // namespace lockstep::internal
