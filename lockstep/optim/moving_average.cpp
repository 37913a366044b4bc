#include "lockstep/optim/moving_average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/optim/rules/option_checks.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/derived_states.h"
#include "lockstep/variable/kinds/mirrored_state.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/update.h"

namespace lockstep {

namespace internal::inline optim {

namespace {

void check(const ReplicaGroup& group, const std::vector<Variable>& variables, const MovingAverageOptions& options) {
  check_fraction("a moving average", ".decay", options.decay);
  if (options.name.empty())
    throw UsageError("LS-OPTION", "a moving average was given an empty .name", "leave it out, or name it");
  if (variables.empty()) {
    throw UsageError("LS-NO-VARIABLES", "a moving average was given no variables",
                     "give it at least one that is mirrored and floating-point");
  }
  std::set<const VariableState*> seen;
  for (const Variable& variable : variables) {
    const VariableState& state = variable.state();
    const auto refuse = [&](ErrorCode code, const std::string& why, const char* remedy) {
      throw UsageError(code, fmt::format("a moving average was given variable '{}', which {}", state.name(), why),
                       remedy);
    };
    if (state.group().get() != &group)
      refuse("LS-OTHER-STRATEGY", "belongs to another strategy", "make both with the same strategy");
    if (!seen.insert(&state).second) refuse("LS-VARIABLE-TWICE", "is listed twice", "give each variable once");
    if (!state.on_write() || !at::isFloatingType(state.number_type())) {
      refuse("LS-VARIABLE-KIND",
             fmt::format("is {}", state.on_write() ? c10::toString(state.like().scalar_type()) : "sync-on-read"),
             "leave it out of the list: averages are of mirrored variables of floating-point or complex dtypes");
    }
  }
}

/// An average of half precision would stand still: an update adds less than half a unit of its last place.
at::ScalarType type_of_average(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

}  // namespace

class MovingAverageState final : public DerivedState {
 public:
  MovingAverageState(std::shared_ptr<ReplicaGroup> group, VariableRegistry& registry,
                     const std::vector<Variable>& variables, MovingAverageOptions options,
                     const std::source_location& place)
      : group_(std::move(group)), options_(std::move(options)) {
    check(*group_, variables, options_);
    const auto make = [&](const std::string& name, FunctionRef<at::Tensor()> initial) {
      return Variable(registry.create({.name = name, .trainable = false}, initial, place));
    };
    for (const Variable& variable : variables) {
      VariableState& state = variable.state();
      state.require_own_value("a moving average");
      state.check_memory();
      variables_.push_back(variable.shared_state());
      averages_.push_back(make(fmt::format("{}/{}", state.name(), options_.name),
                               [&] { return state.read().to(type_of_average(state.like().scalar_type())); }));
    }
    updates_ = make(fmt::format("{}/{}_updates", variables_.front()->name(), options_.name),
                    [] { return at::zeros({}, at::kLong); });
    std::vector<Variable> made = averages_;
    made.push_back(updates_);
    registry.add_together(made);
  }

  void update(const ReplicaContext& context);
  /// Where all variables were loaded, the next update is the first one.
  void start_anew(const std::set<const VariableState*>& loaded) override {
    std::size_t count = 0;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (!loaded.contains(variables_[i].get())) continue;
      VariableState& average = averages_[i].state();
      average.write(variables_[i]->read().to(average.like().scalar_type()));
      ++count;
    }
    if (count == variables_.size()) updates_.state().write(at::zeros({}, at::kLong));
  }
  std::vector<std::string> made_from(const VariableState& variable) const override {
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (variables_[i].get() == &variable) return {averages_[i].name()};
    }
    return {};
  }
  SwapScope swap() const {
    SwapScope scope;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      variables_[i]->require_own_value("a second swap");
      variables_[i]->require_whole("MovingAverage::swap");
      averages_[i].state().check_memory();
    }
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      variables_[i]->as_mirrored().stand_in(averages_[i].state().copies().front());
      scope.variables_.push_back(variables_[i]);  // so that an error puts back what was swapped so far
    }
    return scope;
  }
  const std::vector<Variable>& averages() const { return averages_; }
  int64_t updates() const { return updates_.state().copies().front().item<int64_t>(); }
  ReplicaGroup& group() const { return *group_; }

 private:
  friend class UpdateMeeting;

  /// The share of an average that the next update keeps.
  double keep() const {
    const auto n = static_cast<double>(updates());
    if (n == 0) return 0;
    return options_.warm_up ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay;
  }
  void move_average(std::size_t i, double keep) const {
    VariableState& variable = *variables_[i];
    variable.require_whole("MovingAverage::update");
    variable.check_memory();  // a foreign write must not get into an average
    const at::Tensor& value = variable.copies().front();
    averages_[i].state().as_mirrored().change([&](at::Tensor& average) {
      if (keep == 0) {
        average.copy_(value);
      } else {
        average.lerp_(value.to(average.scalar_type()), 1 - keep);
      }
    });
  }

  const std::shared_ptr<ReplicaGroup> group_;
  const MovingAverageOptions options_;
  std::vector<std::shared_ptr<VariableState>> variables_;
  std::vector<Variable> averages_;  // by variable
  Variable updates_;
};

/// The meeting of all replicas in MovingAverage::update. One lane handles each variable.
class UpdateMeeting final : public Meeting {
 public:
  explicit UpdateMeeting(const MovingAverageState& averages) : averages_(averages) {}

  const char* what() const override { return "MovingAverage::update"; }
  std::string_view name() const override { return averages_.averages_.front().name(); }
  std::string describe() const override {
    return fmt::format("MovingAverage::update of '{}'", averages_.averages_.front().name());
  }

  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {once<&UpdateMeeting::begin>("begin"), on_each_lane<&UpdateMeeting::move>("move"),
                                    once<&UpdateMeeting::count>("count")};
    return all;
  }
  void begin() { keep_ = averages_.keep(); }
  void move(int lane, int num_lanes) {
    const at::NoGradGuard no_grad;
    for (auto i = static_cast<std::size_t>(lane); i < averages_.variables_.size(); i += num_lanes) {
      averages_.move_average(i, keep_);
    }
  }
  void count() {
    averages_.updates_.state().as_mirrored().change([](at::Tensor& updates) { updates.add_(1); });
  }

 private:
  const MovingAverageState& averages_;
  double keep_ = 0;
};

void MovingAverageState::update(const ReplicaContext& context) {
  ContextAccess::check_is_current(context, "MovingAverage::update");
  if (&ContextAccess::group(context) != group_.get()) {
    throw UsageError("LS-OTHER-STRATEGY", "MovingAverage::update was given a context of another strategy",
                     "call it in runs of the strategy that made it");
  }
  if (group_->evaluating()) {
    throw UsageError("LS-INSIDE-EVALUATE", "MovingAverage::update was called inside evaluate()",
                     "call it inside run(), after the optimizer");
  }
  const int64_t r = ContextAccess::local_index(context);
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (variables_.front()->counts()->stand_ins > 0) variables_[i]->require_own_value("MovingAverage::update");
    variables_[i]->check_component(r);
    averages_[i].state().check_component(r);
  }
  UpdateMeeting meeting(*this);
  group_->meet(context, meeting);
}

}  // namespace internal::optim

SwapScope::~SwapScope() {
  for (const auto& variable : variables_) variable->as_mirrored().end_stand_in();
}

MovingAverage::MovingAverage(std::shared_ptr<internal::ReplicaGroup> group, internal::VariableRegistry& registry,
                             const std::vector<Variable>& variables, const MovingAverageOptions& options,
                             const std::source_location& place)
    : state_(std::make_shared<internal::MovingAverageState>(std::move(group), registry, variables, options, place)) {
  registry.derived()->add(state_);
}

internal::MovingAverageState& MovingAverage::state() const {
  if (state_) return *state_;
  throw UsageError("LS-EMPTY-HANDLE", "a MovingAverage that was default-constructed was used",
                   "give it a value first: average = strategy.make_moving_average(model)");
}

void MovingAverage::update(const ReplicaContext& context) const { state().update(context); }

SwapScope MovingAverage::swap() const {
  internal::UpdateScope::require_none("MovingAverage::swap");
  const internal::CallScope call(state().group(), "MovingAverage::swap", "call swap() between runs");
  return state().swap();
}

const std::vector<Variable>& MovingAverage::variables() const { return state().averages(); }

int64_t MovingAverage::updates() const {
  const internal::CallScope call(state().group(), "MovingAverage::updates", "call updates() between runs");
  return state().updates();
}

}  // namespace lockstep
