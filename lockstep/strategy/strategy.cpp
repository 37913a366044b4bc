// What a strategy does outside of steps.
#include "lockstep/strategy/strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <span>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/alone.h"
#include "lockstep/comm/equal_texts.h"
#include "lockstep/comm/failure/call_note.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/told_findings.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/linear/step_products.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/pool/local_worker.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/variable/kinds/waiting_values.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/update.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep {

void Strategy::require_outside_of_step(const char* call, const char* inside) {
  internal::CallScope::refuse_in_step(call, inside);
}

using internal::CallScope;
using internal::ComputeSettingsGuard;
using internal::ContextAccess;
using internal::VariableState;

namespace {

/// A cast can make a value that is none of an enumeration's.
void require_enumerator(bool is_one, const char* option, int value) {
  if (is_one) return;
  throw UsageError("LS-OPTION", fmt::format("{} is {}, which has no name", option, value),
                   "give one of its enumerators");
}

}  // namespace

/// The part of its strategy that a step can reach.
class Strategy::Host final : public internal::StepHost {
 public:
  explicit Host(Strategy& strategy) : strategy_(strategy) {}
  Strategy& strategy() override { return strategy_; }
  internal::VariableRegistry& variables() override { return *strategy_.registry_; }

 private:
  Strategy& strategy_;
};

Strategy::Strategy(StrategySetup setup)
    : name_(std::move(setup.name)),
      verify_every_(internal::doctor_watches() && setup.verify_every >= 0 ? 1 : setup.verify_every),
      factoring_(internal::factoring(setup.factored_gradients)),
      update_form_(internal::update_form(setup.update_form)),
      slots_(internal::slots(setup.slots)),
      wire_(setup.wire) {
  if (name_.empty())
    throw UsageError("LS-OPTION", "a strategy has no name", "give it one: StrategySetup{.name = \"MyStrategy\"}");
  if (verify_every_ < 0) {
    throw UsageError("LS-OPTION", fmt::format(".verify_every is {}", verify_every_),
                     "give a number of runs, or 0 for never");
  }
  require_enumerator(
      setup.factored_gradients == FactoredGradients::kAuto || setup.factored_gradients == FactoredGradients::kOff,
      ".factored_gradients", static_cast<int>(setup.factored_gradients));
  require_enumerator(update_form_ <= UpdateForm::kFactors, ".update_form", static_cast<int>(update_form_));
  require_enumerator(wire_ <= WireFormat::kBFloat16, ".wire", static_cast<int>(wire_));
  require_enumerator(slots_ <= Slots::kSliced, ".slots", static_cast<int>(slots_));
  const bool has_others = setup.world && setup.world->num_workers() > 1;
  if (has_others && wire_ != WireFormat::kExact && update_form_ == UpdateForm::kHostMemory) {
    throw UsageError("LS-OPTION",
                     fmt::format("{} was asked for an update in host memory, which has no such form, and for sums that "
                                 "travel as {}",
                                 name_, internal::name_of(wire_)),
                     "leave .wire out, or ask for another form");
  }
  if (has_others && slots_ == Slots::kSliced &&
      (wire_ != WireFormat::kExact || update_form_ == UpdateForm::kHostMemory)) {
    throw UsageError("LS-OPTION",
                     fmt::format("{} was asked for sliced slots, and for {}", name_,
                                 wire_ != WireFormat::kExact
                                     ? fmt::format("sums that travel as {}", internal::name_of(wire_))
                                     : "an update in host memory, of which all workers of the host have one copy"),
                     "leave .slots whole, and LOCKSTEP_SLOTS unset");
  }
  internal::use_step_products();
  if (!setup.topology) setup.topology = std::make_shared<HostTopology>();
  if (!setup.placement) setup.placement = std::make_shared<OneCopyPlacement>();
  if (!setup.synchronization) setup.synchronization = std::make_shared<EveryStepSynchronization>();
  if (!setup.world) {
    internal::warn_where_alone_among_workers(name_);
    setup.world = internal::one_worker();
  }
  lockstep::Host machine = internal::this_host();
  const auto rounds = std::make_shared<internal::Rounds>(std::move(setup.world));
  machine.num_workers = rounds->num_workers();
  machine.worker_index = rounds->worker_index();
  const internal::WorkersOnCores sharing = internal::workers_on_cores(*rounds, machine.cores);
  machine.local_worker = sharing.before;
  internal::LanePlan plan;
  internal::agree_on_call(*rounds, {.call = name_}, [&](internal::Proposal& mine) {
    plan = internal::plan_lanes(*setup.topology, machine, {setup.threads_per_replica, setup.denormals});
    plan.workers_on_cores = sharing.all;
    mine.detail = fmt::format(
        "{}, seed {}, {} threads for each replica, denormals {}, {}{}{}, fingerprint {}", name_, setup.seed,
        setup.threads_per_replica, setup.denormals == Denormals::kFlush ? "flushed" : "kept",
        setup.reducer ? setup.reducer->describe() : TreeReducer().describe(),
        wire_ == WireFormat::kExact ? "" : fmt::format(", sums travel as {}", internal::name_of(wire_)),
        slots_ == Slots::kWhole ? "" : fmt::format(", slots are sliced, form {}", internal::name_of(update_form_)),
        internal::platform_fingerprint());
    mine.name = mine.detail;
  });
  if (plan.replicas_from_machine) {
    internal::log(LogLevel::kInfo,
                  fmt::format("{} has {} because this machine has {}; results depend on the number of replicas: set "
                              ".replicas to keep them elsewhere",
                              name_, internal::counted(plan.num_replicas, "replica"),
                              internal::counted(plan.available_cores, "core")));
  }
  const internal::ReplicaBlock block = internal::block_of_worker(*rounds, plan.num_replicas);
  host_ = std::make_unique<Host>(*this);
  group_ = std::make_shared<internal::ReplicaGroup>(std::move(plan), block, setup.seed, *host_,
                                                    std::move(setup.reducer), rounds);
  registry_ = std::make_unique<internal::VariableRegistry>(group_, std::move(setup.placement),
                                                           std::move(setup.synchronization));
  internal::tell_strategy(fmt::format("{}, {}", name_, internal::counted(num_replicas(), "replica")));
}

Strategy::~Strategy() {
  if (group_->stop()) return;
  struct Kept {
    std::unique_ptr<internal::VariableRegistry> registry;
    std::unique_ptr<Host> host;
  };
  static auto* const kept = new std::vector<Kept>;  // never destroyed: replicas may still run and use both
  kept->push_back({std::move(registry_), std::move(host_)});
}

int64_t Strategy::num_replicas() const {
  if (const ReplicaContext* const step = internal::current_context()) ContextAccess::losses(*step)->ask_for_counts();
  return group_->num_replicas();
}
int64_t Strategy::num_local_replicas() const { return group_->num_local_replicas(); }
ReplicaId Strategy::first_replica() const { return group_->first_replica(); }
int64_t Strategy::num_workers() const { return group_->num_workers(); }
int64_t Strategy::worker_index() const { return group_->rounds().worker_index(); }
bool Strategy::is_chief() const { return worker_index() == 0; }
const std::vector<std::string>& Strategy::devices() const { return group_->plan().names; }
int64_t Strategy::step() const { return group_->step(); }
bool Strategy::stop_requested() const { return group_->stop_requested(); }
uint64_t Strategy::seed() const { return group_->seed(); }

void Strategy::check_replica(ReplicaId replica, const char* call) const {
  if (replica >= 0 && replica < num_replicas()) return;
  throw UsageError("LS-REPLICA-RANGE",
                   fmt::format("{} was asked for replica {} of {}", call, replica.value(), num_replicas()),
                   fmt::format("choose a replica from 0 to {}", num_replicas() - 1));
}

void Strategy::check_workers() const { group_->rounds().require_running(); }

void Strategy::at_work(std::chrono::milliseconds limit, internal::FunctionRef<void()> fn) const {
  const internal::WorkScope work(group_->rounds(), WorkerPhase::Kind::kFunction, step(), limit);
  fn();
}

void Strategy::run_on_chief(internal::FunctionRef<void()> body, const OnChiefOptions& options,
                            const std::source_location& place) const {
  run_and_send_from_chief([&](internal::SentValue&) { body(); }, options, place);
}

internal::SentValue Strategy::run_and_send_from_chief(internal::FunctionRef<void(internal::SentValue&)> body,
                                                      const OnChiefOptions& options,
                                                      const std::source_location& place) const {
  constexpr const char* kCall = "Strategy::on_chief";
  const internal::CallNote note(kCall, {}, &place);
  const CallScope call(*group_, kCall, "return the value and use it after run()");
  internal::SentValue sent;
  internal::agree_on_call(group_->rounds(), {.call = kCall, .step = step()}, [&](internal::Proposal&) {
    if (!is_chief()) return;
    const internal::WorkScope work(group_->rounds(), WorkerPhase::Kind::kOnChief, step(), options.limit);
    const internal::ChiefScope alone(*group_);
    body(sent);
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : sent.tensors) {
      if (!tensor.defined()) continue;
      internal::check_operand(kCall, tensor);
      tensor = internal::plain_and_contiguous(tensor).clone();
    }
  });
  if (num_workers() == 1) return sent;
  // of_replica(0, ...) sends from the chief, which has replica 0, and uses nothing of the other workers.
  std::vector<int64_t> sizes{static_cast<int64_t>(sent.bytes.size())};
  for (const at::Tensor& tensor : sent.tensors) sizes.push_back(tensor.defined() ? 1 : 0);
  const at::Tensor header = group_->of_replica(0, at::tensor(sizes, at::kLong));
  const std::span<const int64_t> numbers = internal::host_numbers<int64_t>(header);
  sent.bytes.resize(static_cast<std::size_t>(numbers[0]));
  sent.tensors.resize(static_cast<std::size_t>(header.numel() - 1));
  const at::Tensor bytes = group_->of_replica(0, at::from_blob(sent.bytes.data(), {numbers[0]}, at::kByte));
  if (!is_chief()) sent.bytes = internal::host_text(bytes);
  for (std::size_t i = 0; i < sent.tensors.size(); ++i) {
    if (numbers[i + 1] != 0) sent.tensors[i] = group_->of_replica(0, sent.tensors[i]);
  }
  return sent;
}

void Strategy::require_one_worker_for_result() const {
  if (num_workers() == 1) return;
  throw UsageError(
      "LS-ONE-WORKER", "on_chief was given a function whose result cannot be sent to the other workers",
      "return a number, an enumerator, a string, a tensor, or a vector, array, optional, pair, tuple or map of these");
}

std::shared_ptr<internal::ModuleBinding> Strategy::bind_modules(
    const ModuleOptions& options, internal::FunctionRef<std::shared_ptr<torch::nn::Module>()> next,
    const std::source_location& place) {
  const internal::CallNote note("make_module", options.name, &place);
  const CallScope call(*group_, "Strategy::make_module", "use modules that were made before run()",
                       internal::Workers::kAll, options.name);
  const ComputeSettingsGuard settings(group_->plan().compute);
  // Tensors of inference mode could not be trained. Leaving that mode turns gradients on, so the caller's mode is kept.
  const bool with_gradient = at::GradMode::is_enabled();
  const c10::InferenceMode normal(false);
  const at::AutoGradMode gradient(with_gradient);
  std::shared_ptr<internal::ModuleBinding> binding;
  internal::ValueDigests initial(*group_);
  std::vector<std::string> texts;  // what workers compare of each variable before its value
  const auto make = [&](internal::Proposal& mine) {
    const internal::WorkScope work(group_->rounds(), WorkerPhase::Kind::kFunction, step(), options.limit);
    registry_->require_fresh_module(options.name, place);
    const internal::DefaultGeneratorGuard callers;
    const auto next_replicas = [&] {
      internal::RandomStream stream;
      stream.restart(internal::StreamKey::of_module(group_->seed(), options.name));
      const internal::RandomScope scope(stream);
      return next();
    };
    binding = std::make_shared<internal::ModuleBinding>(group_, options.name, options.buffers, next_replicas,
                                                        *registry_, place);
    for (const Variable& variable : binding->variables()) {
      const at::Tensor& value = variable.state().component(0);
      initial.add(variable.name(), value);
      texts.push_back(fmt::format("'{}', {}, {}{}", variable.name(), internal::shape_text(value),
                                  internal::kind_of(variable.state()), variable.trainable() ? "" : ", not trainable"));
    }
    initial.fill_in(mine, /*names_must_match=*/false);
    mine.signature = static_cast<uint64_t>(options.buffers);
    mine.detail = fmt::format("make_module of '{}' with {} variables, buffers {}", options.name,
                              binding->variables().size(), internal::name_of(options.buffers));
  };
  // Where one worker cannot make the module, none makes it.
  const auto all =
      internal::agree_on_call(group_->rounds(), {.call = "make_module", .name = options.name, .step = step()}, make);
  internal::require_equal_texts(
      group_->rounds(), {.call = "make_module", .name = options.name, .step = step(), .detail = "a module's variables"},
      texts, fmt::format("make_module of '{}'", options.name), "variable",
      "let the factory make the same module on all workers: let it depend on no flag, file or number of one worker");
  initial.require_equal(all, "make_module");
  registry_->add(binding);
  return binding;
}

Variable Strategy::make_variable_from(internal::FunctionRef<at::Tensor()> initial, VariableOptions options,
                                      const std::source_location& place) {
  const internal::CallNote note("make_variable", options.name, &place);
  const CallScope call(*group_, "Strategy::make_variable", "call ctx.make_variable(name, initial, options)",
                       internal::Workers::kAll, options.name);
  return Variable(registry_->make(options, initial, place));  // a copy: the note has the name
}

std::vector<Variable> Strategy::parameters_of(const std::vector<Variable>& variables) {
  std::vector<Variable> parameters;
  std::copy_if(variables.begin(), variables.end(), std::back_inserter(parameters), [](const Variable& variable) {
    if (!variable.trainable() && !internal::is_trainable_type(variable.dtype())) return false;  // an index, a mask
    return variable.synchronization() == VariableSynchronization::kOnWrite || variable.state().is_trained_locally();
  });
  return parameters;
}

Optimizer Strategy::make_optimizer_from(const std::vector<Rule>& rules, const OptimizerOptions& named) {
  const CallScope call(*group_, "Strategy::make_optimizer", "use optimizers that were made before run()",
                       internal::Workers::kAll, named.name);
  std::erase_if(optimizers_, [](const auto& one) { return one.expired(); });
  std::vector<std::shared_ptr<internal::OptimizerState>> others;
  for (const auto& one : optimizers_) others.push_back(one.lock());
  const auto taken = [&](const std::string& name) {
    return std::any_of(others.begin(), others.end(), [&](const auto& other) { return other->name() == name; });
  };
  if (taken(named.name)) {
    throw UsageError("LS-NAME-TAKEN", fmt::format("a second optimizer named '{}' was asked for", named.name),
                     "give each optimizer a name of its own, or none");
  }
  std::string name = named.name;
  int64_t next = next_optimizer_;
  while (name.empty() || (named.name.empty() && taken(name))) {
    name = next == 0 ? "optimizer" : fmt::format("optimizer_{}", next);
    ++next;
  }
  const auto has_optimizer = [&](const VariableState& variable) {
    return std::any_of(others.begin(), others.end(), [&](const auto& other) {
      const auto& theirs = other->variables();
      return std::any_of(theirs.begin(), theirs.end(), [&](const auto& one) { return one.get() == &variable; });
    });
  };
  std::vector<internal::RuleGroup> groups;
  const auto rule_of = [](const auto* options) { return internal::make_rule(*options); };
  for (const Rule& rule : rules) groups.push_back({rule.variables, std::visit(rule_of, rule.options)});
  const internal::OptimizerSetup setup{.group = group_,
                                       .name = std::move(name),
                                       .factoring = factoring_,
                                       .asked = internal::AskedForm::of(update_form_, wire_),
                                       .slots = slots_};
  auto state =
      std::make_shared<internal::OptimizerState>(setup, std::move(groups), registry_->placement(), has_optimizer);
  const auto waiting = registry_->waiting();
  if (waiting) waiting->check_order(state->name(), state->slots());
  registry_->add_together(state->slots());
  optimizers_.push_back(state);
  group_->batch_uses().note_optimizer();
  next_optimizer_ = next;
  if (waiting) waiting->give_to_items(state_items());
  return Optimizer(std::move(state));
}

std::vector<Finding> Strategy::findings() const { return group_->findings().all(); }

MovingAverage Strategy::make_moving_average(const std::vector<Variable>& variables, const MovingAverageOptions& options,
                                            const std::source_location& place) {
  const CallScope call(*group_, "Strategy::make_moving_average", "use averages that were made before run()");
  return MovingAverage(group_, *registry_, variables, options, place);
}

void internal::throw_group_without_options(std::size_t group) {
  throw UsageError("LS-OPTION", fmt::format("group {} of an optimizer has no options", group),
                   "give each group options, or make_optimizer(groups, defaults)");
}

std::vector<at::Tensor> internal::tensors_of(const std::vector<double>& numbers) {
  std::vector<at::Tensor> tensors;
  for (const double number : numbers) tensors.push_back(at::scalar_tensor(number, at::kDouble));
  return tensors;
}

std::vector<at::Tensor> internal::tensors_of(const std::vector<int64_t>& numbers) {
  std::vector<at::Tensor> tensors;
  for (const int64_t number : numbers) tensors.push_back(at::scalar_tensor(number, at::kLong));
  return tensors;
}

std::vector<Variable> Strategy::variables() const {
  const CallScope call(*group_, "Strategy::variables", "use the variables that you have", internal::Workers::kThis);
  registry_->forget_unused();
  std::vector<Variable> result;
  for (const auto& state : registry_->variables()) result.emplace_back(state);
  return result;
}

void Strategy::update_each(const Variable& variable, bool for_each_replica,
                           internal::FunctionRef<void(at::Tensor&, int64_t)> fn) {
  const CallScope call(*group_, "Strategy::update", "use Variable::assign(ctx, value), or ctx.merge_call()",
                       internal::Workers::kAll, variable.name());
  check_ours(variable.state(), "Strategy::update");
  internal::update(variable.state(), for_each_replica, fn);
}

void Strategy::update_from(ReplicaId from, const Variable& variable, const at::Tensor& value) {
  const CallScope call(*group_, "Strategy::update_from", "call it in a merge function: ctx.merge_call()",
                       internal::Workers::kAll, variable.name());
  at::Tensor given;
  internal::agree_on_call(group_->rounds(), {.call = "Strategy::update_from", .step = step()},
                          [&](internal::Proposal& mine) {
                            check_ours(variable.state(), "Strategy::update_from");
                            check_replica(from, "Strategy::update_from");
                            mine.signature = static_cast<uint64_t>(from.value());
                            const bool here = group_->block().has(from);
                            given = here ? internal::value_for(variable.state(), value, "update_from") : value;
                          });
  variable.assign(broadcast(from, given));
}

void Strategy::check_ours(const VariableState& variable, const char* call) const {
  if (variable.group() == group_) return;
  throw UsageError("LS-OTHER-STRATEGY",
                   fmt::format("{} was given variable '{}' of another strategy", call, variable.name()),
                   "call it on the strategy that made the variable");
}

}  // namespace lockstep
