// What a strategy does outside of steps.
#include "lockstep/strategy/strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/core/simd.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/data/split.h"
#include "lockstep/memory/tensor_allocator.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/update_rule.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/update.h"
#include "lockstep/variable/variable_table.h"

namespace lockstep {

using internal::CallScope;
using internal::ComputeSettingsGuard;
using internal::VariableState;

namespace {

std::vector<at::Tensor> tensors_of(const PerReplica<at::Tensor>& values, int64_t replicas, const char* call) {
  if (static_cast<int64_t>(values.size()) != replicas) {
    throw UsageError(fmt::format("{} was given {} values for {} replicas", call, values.size(), replicas),
                     "pass what run() or per_replica() of this strategy gave");
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& value : values) {
    if (!value.defined() || value.layout() != at::kStrided) {
      throw UsageError(
          fmt::format("{} was given {} tensor for replica {}", call, value.defined() ? "a sparse" : "an undefined",
                      values.first_replica() + static_cast<int64_t>(tensors.size())),
          "give a dense tensor for each replica");
    }
    tensors.push_back(value.detach());
  }
  return tensors;
}

void check_alike(const std::vector<at::Tensor>& tensors, const char* call, bool same_shape, const char* remedy) {
  for (std::size_t r = 1; r < tensors.size(); ++r) {
    const at::Tensor& a = tensors.front();
    const at::Tensor& b = tensors[r];
    if (a.scalar_type() == b.scalar_type() && (same_shape ? a.sizes() == b.sizes() : a.dim() == b.dim())) continue;
    throw UsageError(fmt::format("{} was given {} [{}] for replica 0 and {} [{}] for replica {}", call,
                                 c10::toString(a.scalar_type()), fmt::join(a.sizes(), ", "),
                                 c10::toString(b.scalar_type()), fmt::join(b.sizes(), ", "), r),
                     remedy);
  }
}

std::vector<int64_t> checked_axes(const Axes& axes, int64_t dimensions) {
  std::vector<int64_t> result;
  for (int64_t axis : axes.values()) {
    if (axis < -dimensions || axis >= dimensions) {
      throw UsageError(fmt::format("Strategy::reduce was given axis {} of tensors of {} dimensions", axis, dimensions),
                       "choose axes that the tensors have, or none");
    }
    result.push_back(axis < 0 ? axis + dimensions : axis);
  }
  return result;
}

/// One replica's tensor taken together over some dimensions.
at::Tensor reduced_locally(Reduction reduction, const at::Tensor& value, const std::vector<int64_t>& axes) {
  switch (reduction) {
    case Reduction::kMin: return at::amin(value, axes);
    case Reduction::kMax: return at::amax(value, axes);
    default:
      return at::sum(value.to(internal::accumulation_type_of(value.scalar_type())), axes, false,
                     internal::accumulation_type_of(value.scalar_type()));
  }
}

}  // namespace

Strategy::Strategy(StrategySetup setup) : name_(std::move(setup.name)), verify_every_(setup.verify_every) {
  if (name_.empty())
    throw UsageError("LS-OPTION", std::string("a strategy has no name"),
                     "give it one: StrategySetup{.name = \"MyStrategy\"}");
  if (verify_every_ < 0) {
    throw UsageError("LS-OPTION", fmt::format(".verify_every is {}", verify_every_),
                     "give a number of runs, or 0 for never");
  }
  if (!setup.topology) setup.topology = std::make_shared<HostTopology>();
  if (!setup.placement) setup.placement = std::make_shared<OneCopyPlacement>();
  internal::LanePlan plan = internal::plan_lanes(*setup.topology, {.cores = internal::cores_of_this_process()},
                                                 {setup.threads_per_replica, setup.denormals});
  if (plan.replicas_from_machine) {
    internal::log(LogLevel::kInfo,
                  fmt::format("{} has {} replicas because this machine has {} cores; results depend on "
                              "the number of replicas: set .replicas to keep them elsewhere",
                              name_, plan.num_replicas, plan.available_cores));
  }
  group_ = std::make_shared<internal::ReplicaGroup>(std::move(plan), setup.seed, this, std::move(setup.reducer));
  registry_ = std::make_unique<internal::VariableRegistry>(group_, std::move(setup.placement));
  group_->set_variables(registry_.get());
}

Strategy::~Strategy() { group_->stop(); }

int64_t Strategy::num_replicas() const { return group_->num_replicas(); }
int64_t Strategy::num_local_replicas() const { return group_->num_local_replicas(); }
ReplicaId Strategy::first_replica() const { return group_->first_replica(); }
int64_t Strategy::num_workers() const { return 1; }
int64_t Strategy::worker_index() const { return 0; }
bool Strategy::is_chief() const { return worker_index() == 0; }
const std::vector<std::string>& Strategy::devices() const { return group_->plan().names; }
int64_t Strategy::step() const { return group_->step(); }
uint64_t Strategy::seed() const { return group_->seed(); }

std::string Strategy::describe() const {
  const internal::LanePlan& plan = group_->plan();
  std::string text =
      fmt::format("{}: {} replica{} on {} lane{} [{}]\n", name_, plan.num_replicas, plan.num_replicas == 1 ? "" : "s",
                  plan.num_lanes(), plan.num_lanes() == 1 ? "" : "s", fmt::join(plan.names, ", "));
  text += plan.replicas_from_machine
              ? "  the number of replicas is this machine's number of cores; set .replicas to get the same results "
                "elsewhere\n"
              : "  the number of replicas is the program's: it is the same on every machine\n";
  text += fmt::format("  {} intra-op thread{} for each replica; {} core{} available, lanes {}\n", plan.compute.threads,
                      plan.compute.threads == 1 ? "" : "s", plan.available_cores, plan.available_cores == 1 ? "" : "s",
                      plan.pinned() ? "pinned" : "not pinned");
  const int64_t idle = plan.available_cores - static_cast<int64_t>(plan.num_lanes()) * plan.compute.threads;
  if (idle > 0) {
    text += fmt::format(
        "  {} core{} idle: more lanes (.devices) use them without changing results, more .replicas or "
        ".threads_per_replica change them\n",
        idle, idle == 1 ? " stays" : "s stay");
  }
  text += fmt::format("  mirrored variables: {}; replicas' values are added {}; seed {}\n",
                      registry_->placement().describe(), group_->reducer().describe(), group_->seed());
  text += fmt::format("  denormal numbers are {}; {}\n",
                      plan.compute.denormals == Denormals::kFlush ? "flushed to 0" : "kept",
                      internal::tensor_allocator_description());
  text += fmt::format("  {}; own loops {}; fingerprint {}\n", internal::platform_description(),
                      internal::name_of(internal::simd()), internal::platform_fingerprint());
  if (!group_->running() && !registry_->variables().empty()) text += describe_variables();
  return text;
}

at::Tensor Strategy::reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes) const {
  const CallScope call(*group_, "Strategy::reduce", "call ctx.all_reduce()");
  const ComputeSettingsGuard settings(group_->plan().compute);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = tensors_of(values, num_local_replicas(), "Strategy::reduce");
  if (axes.values().empty()) {
    check_alike(tensors, "Strategy::reduce", true,
                "give tensors of one shape and dtype, or the axes along which they differ in size");
    return group_->reduce(reduction, tensors);
  }
  check_alike(tensors, "Strategy::reduce", false, "give tensors of one dtype and number of dimensions");
  const at::ScalarType type = internal::result_type_of(reduction, tensors.front());
  const std::vector<int64_t> dimensions = checked_axes(axes, tensors.front().dim());
  std::vector<at::Tensor> parts;
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    int64_t here = 1;
    for (const int64_t axis : dimensions) here *= tensor.size(axis);
    elements += here;
    const bool extreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
    if (extreme && here == 0) continue;  // an empty part has no extreme
    parts.push_back(reduced_locally(reduction, tensor, dimensions));
  }
  if (elements == 0 && reduction != Reduction::kSum) {
    throw UsageError(fmt::format("Strategy::reduce was asked for the {} of no elements at all", name_of(reduction)),
                     "leave out steps in which no replica has a sample");
  }
  check_alike(parts, "Strategy::reduce", true, "give tensors that differ in size along the given axes only");
  if (reduction != Reduction::kMean) return group_->reduce(reduction, parts).to(type);
  const at::Tensor sum = group_->reduce(Reduction::kSum, parts);
  const bool integral = at::isIntegralType(sum.scalar_type(), false);
  return ((integral ? sum.to(at::kDouble) : sum) / static_cast<double>(elements)).to(type);
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  const CallScope call(*group_, "Strategy::gather", "call ctx.all_gather()");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = tensors_of(values, num_local_replicas(), "Strategy::gather");
  check_alike(tensors, "Strategy::gather", false, "give tensors of one dtype and number of dimensions");
  const int64_t dimensions = tensors.front().dim();
  if (dimensions == 0) {
    throw UsageError("Strategy::gather was given tensors without dimensions", "give them one: value.reshape({1})");
  }
  if (axis < -dimensions || axis >= dimensions) {
    throw UsageError(fmt::format("Strategy::gather was given axis {} of tensors of {} dimensions", axis, dimensions),
                     fmt::format("choose an axis from 0 to {}", dimensions - 1));
  }
  std::vector<at::Tensor> stubs;
  for (const at::Tensor& tensor : tensors) stubs.push_back(tensor.narrow(axis, 0, 0));
  check_alike(stubs, "Strategy::gather", true, "give tensors that differ in size along the given axis only");
  return at::cat(tensors, axis);
}

void Strategy::check_replica(ReplicaId replica, const char* call) const {
  if (replica >= 0 && replica < num_replicas()) return;
  throw UsageError("LS-REPLICA-RANGE",
                   fmt::format("{} was asked for replica {} of {}", call, replica.value(), num_replicas()),
                   fmt::format("choose a replica from 0 to {}", num_replicas() - 1));
}

at::Tensor Strategy::broadcast(ReplicaId from, const at::Tensor& value) const {
  const CallScope call(*group_, "Strategy::broadcast", "call ctx.broadcast()");
  check_replica(from, "Strategy::broadcast");
  if (!value.defined() || value.layout() != at::kStrided) {
    throw UsageError(
        fmt::format("Strategy::broadcast was given {} tensor", value.defined() ? "a sparse" : "an undefined"),
        "give a dense tensor");
  }
  return value.detach().clone();
}

void Strategy::run_on_chief(internal::FunctionRef<void()> body) const {
  const CallScope call(*group_, "Strategy::on_chief", "return the value and use it after run()");
  const internal::ChiefScope alone(*group_);
  body();
}

std::shared_ptr<internal::ModuleBinding> Strategy::bind_modules(
    const ModuleOptions& options, internal::FunctionRef<std::shared_ptr<torch::nn::Module>()> next,
    const std::source_location& place) {
  const CallScope call(*group_, "Strategy::make_module", "use modules that were made before run()");
  const ComputeSettingsGuard settings(group_->plan().compute);
  // Tensors of inference mode could not be trained; leaving it turns gradients on, which the factory may not want.
  const bool with_gradient = at::GradMode::is_enabled();
  const c10::InferenceMode normal(false);
  const at::AutoGradMode gradient(with_gradient);
  registry_->require_fresh_module(options.name, place);
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (int64_t r = 0; r < num_local_replicas(); ++r) {
    internal::RandomStream stream;
    stream.restart(internal::StreamKey::of_module(group_->seed(), options.name));
    const internal::RandomScope scope(stream);
    modules.push_back(next());
  }
  auto binding = std::make_shared<internal::ModuleBinding>(group_, options.name, std::move(modules), *registry_, place);
  registry_->add(binding);
  return binding;
}

Variable Strategy::make_variable_from(internal::FunctionRef<at::Tensor()> initial, VariableOptions options,
                                      const std::source_location& place) {
  const CallScope call(*group_, "Strategy::make_variable", "call ctx.make_variable(name, initial, options)");
  return Variable(registry_->make(std::move(options), initial, place));
}

std::vector<Variable> Strategy::parameters_of(const std::vector<Variable>& variables) {
  std::vector<Variable> parameters;
  std::copy_if(variables.begin(), variables.end(), std::back_inserter(parameters), [](const Variable& variable) {
    return variable.synchronization() == VariableSynchronization::kOnWrite || variable.state().is_trained_apart();
  });
  return parameters;
}

Optimizer Strategy::make_optimizer_from(const std::vector<Rule>& rules) {
  const CallScope call(*group_, "Strategy::make_optimizer", "use optimizers that were made before run()");
  std::vector<internal::RuleGroup> groups;
  for (const Rule& rule : rules) {
    groups.push_back(
        {rule.variables, std::visit([](const auto* options) { return internal::make_rule(*options); }, rule.options)});
  }
  auto state = std::make_shared<internal::OptimizerState>(group_, std::move(groups));
  for (const Variable& slot : state->slots()) registry_->add(slot.shared_state());
  return Optimizer(std::move(state));
}

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

DistributedDataset Strategy::distribute(const Dataset& dataset, DistributeOptions options) const {
  return DistributedDataset(dataset, options, group_->seed(), num_replicas(), first_replica(), num_local_replicas());
}

PerReplica<Batch> Strategy::split(const at::Tensor& input, const at::Tensor& target) const {
  return internal::split(input, target, num_replicas(), first_replica(), num_local_replicas());
}

std::vector<Variable> Strategy::variables() const {
  const CallScope call(*group_, "Strategy::variables", "use the variables that you have", internal::Workers::kThis);
  registry_->forget_unused();
  std::vector<Variable> result;
  for (const auto& state : registry_->variables()) result.emplace_back(state);
  return result;
}

std::string Strategy::describe_variables() const {
  constexpr std::size_t kRows = 40;
  std::vector<internal::VariableRow> rows;
  for (const Variable& variable : variables()) rows.push_back(internal::row_of(variable.state()));
  return internal::table_of(internal::shortened(rows, kRows));
}

void Strategy::update_each(const Variable& variable, bool for_each_replica,
                           internal::FunctionRef<void(at::Tensor&, int64_t)> fn) {
  const CallScope call(*group_, "Strategy::update", "use Variable::assign(ctx, value), or ctx.merge_call()");
  check_ours(variable.state(), "Strategy::update");
  internal::update(variable.state(), for_each_replica, fn);
}

void Strategy::update_from(ReplicaId from, const Variable& variable, const at::Tensor& value) {
  const CallScope call(*group_, "Strategy::update_from", "call it in a merge function: ctx.merge_call()");
  check_ours(variable.state(), "Strategy::update_from");
  check_replica(from, "Strategy::update_from");
  variable.assign(broadcast(from, internal::value_for(variable.state(), value, "update_from")));
}

void Strategy::check_ours(const VariableState& variable, const char* call) const {
  if (variable.group() == group_) return;
  throw UsageError("LS-OTHER-STRATEGY",
                   fmt::format("{} was given variable '{}' of another strategy", call, variable.name()),
                   "call it on the strategy that made the variable");
}

}  // namespace lockstep
