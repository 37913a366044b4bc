// The public face: one training step on many replicas, whatever carries them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/findings.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/reduce/reduction.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/optim/moving_average.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/run_args.h"
#include "lockstep/variable/replicated.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

struct StrategySetup;

namespace internal {
class OptimizerState;
class VariableRegistry;
[[noreturn]] void throw_group_without_options(std::size_t group);
}  // namespace internal

/// The dimensions that reduce() takes the values of each replica together over: none, one or several.
class Axes {
 public:
  Axes() = default;
  Axes(std::nullopt_t) {}  // NOLINT(google-explicit-constructor)
  template <std::integral Axis>
  Axes(Axis axis) : axes_({static_cast<int64_t>(axis)}) {}  // NOLINT(google-explicit-constructor)
  Axes(std::optional<int64_t> axis) {                       // NOLINT(google-explicit-constructor)
    if (axis) axes_.push_back(*axis);
  }
  Axes(std::initializer_list<int64_t> axes) : axes_(axes) {}
  Axes(std::vector<int64_t> axes) : axes_(std::move(axes)) {}  // NOLINT(google-explicit-constructor)
  const std::vector<int64_t>& values() const { return axes_; }

 private:
  std::vector<int64_t> axes_;
};

/// A function that makes the initial value of a variable.
template <class Fn>
concept InitialValue = std::is_invocable_r_v<at::Tensor, Fn&>;

/// Base of all strategies. Neither copied nor moved; the handles that it gives out may outlive it.
///
/// Its members are called outside of steps, by one thread at a time: inside a step each is a UsageError that names the
/// call to make there instead. Merge functions (ReplicaContext::merge_call) may call all of them but run and evaluate.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// "MirroredStrategy", as in messages and reports.
  const std::string& name() const { return name_; }
  /// Replicas of the whole run, over all workers.
  int64_t num_replicas() const;
  /// Processes of the run.
  int64_t num_workers() const { return 1; }
  int64_t worker_index() const { return 0; }
  /// Whether this process is the one that writes files and reports progress.
  bool is_chief() const { return true; }
  /// The lanes or devices of this process, in the order in which replicas are dealt to them.
  const std::vector<std::string>& devices() const;
  /// How many runs were completed; the step() of the next one.
  int64_t step() const;
  uint64_t seed() const;
  /// Everything that decides results and speed, for a reader: replicas, lanes, cores, and the fingerprint of what the
  /// promise of equal bits depends on; outside of runs the table of variables too, where there are any.
  std::string describe() const;

  /// Calls `fn(ctx)` once for each replica of this process, each on its own thread, under the caller's grad mode and
  /// the rest of its at::ThreadLocalState, and gives what they return: a PerReplica, also with one replica; nothing
  /// where `fn` returns nothing. Replica 0's thread is the caller's.
  ///
  /// Where a step throws, the others are stopped at their next meeting point and run throws ReplicaError, nested on the
  /// first exception. Then gradients are dropped, and the step is not counted.
  template <class Fn>
  requires std::invocable<Fn&, ReplicaContext&>
  auto run(Fn&& fn) { return run_with(Mode::kStep, std::tuple<>(), fn); }
  /// The same with arguments, `fn(ctx, arguments...)`: a PerReplica gives each replica its component, anything else
  /// reaches each replica whole; a std::tuple is expanded into several arguments, each by this rule.
  template <class Args, class Fn>
  auto run(const Args& args, Fn&& fn) {
    return run_with(Mode::kStep, internal::as_tuple(args), fn);
  }

  /// run() with gradients off, all modules of the strategy in evaluation mode (restored after), random streams of its
  /// own; step() does not advance.
  template <class Fn>
  requires std::invocable<Fn&, ReplicaContext&>
  auto evaluate(Fn&& fn) { return run_with(Mode::kEvaluate, std::tuple<>(), fn); }
  template <class Args, class Fn>
  auto evaluate(const Args& args, Fn&& fn) {
    return run_with(Mode::kEvaluate, internal::as_tuple(args), fn);
  }

  /// One tensor from all replicas' ones, in tree order. Without `axes` the tensors have one shape, and kMean gives each
  /// replica the same weight. With `axes` each replica's tensor is first taken together over these dimensions, and
  /// kMean is the true mean over all elements: sizes along them may differ and be 0. kMean of integers is float64.
  at::Tensor reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes = {});
  /// All replicas' tensors joined along `axis`, in replica order; they may differ in size along it only.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0);
  /// Replica `from`'s tensor on every worker: the `value` that the worker which has that replica gave, a copy. Other
  /// workers' `value` is not looked at.
  at::Tensor broadcast(ReplicaId from, const at::Tensor& value);
  /// `fn(ReplicaId)` once for each replica of this process, on the calling thread.
  template <std::invocable<ReplicaId> Fn>
  auto per_replica(Fn&& fn) {
    using T = std::decay_t<std::invoke_result_t<Fn&, ReplicaId>>;
    std::vector<T> values;
    for (int64_t r = 0; r < num_local_replicas(); ++r) values.push_back(fn(ReplicaId(first_replica() + r)));
    return PerReplica<T>(std::move(values), first_replica());
  }
  /// The values of this process's replicas, in replica order.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& values) {
    return std::vector<T>(values.begin(), values.end());
  }
  /// Calls `fn()` once, on the chief, and gives every worker what it returned or threw there. In `fn` calls in which
  /// all workers take part are UsageErrors, with one worker too: all but those that read what this process has,
  /// Variable::components, Variable::read of an on-write variable, variables() and the like.
  template <std::invocable Fn>
  auto on_chief(Fn&& fn) {
    using Result = std::decay_t<std::invoke_result_t<Fn&>>;
    if constexpr (std::is_void_v<Result>) {
      run_on_chief([&] { fn(); });
    } else {
      std::optional<Result> result;
      run_on_chief([&] { result.emplace(fn()); });
      return Result(std::move(*result));  // NOLINT(bugprone-unchecked-optional-access): run_on_chief calls it
    }
  }

  /// A module of which every replica has its own: `factory()` is called once for each, under a random stream that is a
  /// function of (seed, module name), and must build the same each time. A UsageError where the modules are not alike
  /// or share something, or where a name is taken, with both places; a DivergenceError where initial values differ.
  template <std::invocable Factory>
  auto make_module(Factory factory, const ModuleOptions& options = {},
                   const std::source_location& place = std::source_location::current()) {
    using M = std::decay_t<std::invoke_result_t<Factory&>>;
    auto modules = std::make_shared<std::vector<M>>();
    const auto next = [&] {
      modules->push_back(factory());
      return internal::module_in(modules->back());
    };
    auto binding = bind_modules(options, next, place);
    return Replicated<M>(std::move(binding), std::move(modules), std::move(factory));
  }

  /// A variable with an initial value of any dtype; see Variable. A UsageError for a name that is taken, with both
  /// places, and for a mean of integers or a sum of bool. Where anything is thrown, nothing was made. Inside a step:
  /// ReplicaContext::make_variable.
  Variable make_variable(const at::Tensor& initial, VariableOptions options = {},
                         const std::source_location& place = std::source_location::current()) {
    return make_variable_from([&]() -> at::Tensor { return initial; }, std::move(options), place);
  }
  /// The same, `initial()` being called once, under a random stream that is a function of (seed, name).
  template <InitialValue Initial>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): moved on, which the check overlooks in a template
  Variable make_variable(Initial&& initial, VariableOptions options = {},
                         const std::source_location& place = std::source_location::current()) {
    return make_variable_from([&]() -> at::Tensor { return initial(); }, std::move(options), place);
  }

  /// An optimizer over a module's parameters, a list of variables, or groups with options of their own. Options are
  /// those of torch::optim: SGD, Adam, AdamW, RMSprop, Adagrad.
  template <class M, class Options>
  Optimizer make_optimizer(const Replicated<M>& module, const Options& options, const OptimizerOptions& named = {}) {
    return make_optimizer(parameters_of(module.variables()), options, named);
  }
  template <class Options>
  Optimizer make_optimizer(const std::vector<Variable>& variables, const Options& options,
                           const OptimizerOptions& named = {}) {
    std::vector<Rule> rules;
    rules.push_back({variables, internal::make_rule(options)});
    return make_optimizer_from(std::move(rules), named);
  }
  template <class Options>
  Optimizer make_optimizer(const std::vector<ParameterGroup<Options>>& groups, const Options& defaults,
                           const OptimizerOptions& named = {}) {
    std::vector<Rule> rules;
    for (const auto& group : groups)
      rules.push_back({group.variables, internal::make_rule(group.options.value_or(defaults))});
    return make_optimizer_from(std::move(rules), named);
  }
  /// A UsageError where a group has no options.
  template <class Options>
  Optimizer make_optimizer(const std::vector<ParameterGroup<Options>>& groups) {
    std::vector<Rule> rules;
    for (const auto& group : groups) {
      if (!group.options) internal::throw_group_without_options(rules.size());
      rules.push_back({group.variables, internal::make_rule(*group.options)});
    }
    return make_optimizer_from(std::move(rules), {});
  }

  /// Moving averages of a module's parameters, or of a list of variables: mirrored and floating-point, otherwise a
  /// UsageError; also for a decay outside of [0, 1), and where a variable has an average's name. Their values now are
  /// what the averages are before the first update.
  template <class M>
  MovingAverage make_moving_average(const Replicated<M>& module, const MovingAverageOptions& options = {},
                                    const std::source_location& place = std::source_location::current()) {
    return make_moving_average(parameters_of(module.variables()), options, place);
  }
  MovingAverage make_moving_average(const std::vector<Variable>& variables, const MovingAverageOptions& options = {},
                                    const std::source_location& place = std::source_location::current());

  /// What was noticed in steps that is probably a mistake, each with the number of steps it was seen in. The log has
  /// said each once. Any thread.
  std::vector<Finding> findings() const;

  /// Deals a data set to the replicas.
  DistributedDataset distribute(const Dataset& dataset, DistributeOptions options);

  /// All living variables of the strategy in order of creation, those of modules and optimizers included.
  std::vector<Variable> variables() const;
  /// A table of them for a reader: name, kind, dtype and shape, bytes, copies, where. It stays short: of many variables
  /// those whose names begin alike are shown as one.
  std::string describe_variables() const;
  /// Calls `fn(value, args...)` once for each copy of an on-write variable, for each component of an on-read one;
  /// `value` is a tensor to change in place, without gradient. A PerReplica among `args` gives each replica its
  /// component, and then `fn` is called once for each replica of this process. What the calls leave of an on-write
  /// variable must be equal: otherwise a DivergenceError. Where anything is thrown, nothing has changed.
  template <class Fn, class... Args>
  void update(const Variable& variable, Fn&& fn, const Args&... args) {
    (internal::check_argument("update", args, num_local_replicas()), ...);
    const bool for_each_replica = (internal::IsPerReplica<Args>::value || ...);
    update_each(variable, for_each_replica,
                [&](at::Tensor& value, [[maybe_unused]] int64_t r) { fn(value, internal::component_of(args, r)...); });
  }
  /// Sets a variable, on all workers, to the `value` that the worker which has replica `from` gave, as
  /// Variable::assign() does. In order with all other writes; inside a step, call it in a merge function.
  void update_from(ReplicaId from, const Variable& variable, const at::Tensor& value);

 protected:
  /// For strategies of one's own: see StrategySetup. Throws the UsageErrors of its parts.
  explicit Strategy(StrategySetup setup);

 private:
  enum class Mode { kStep, kEvaluate };
  /// Variables that are updated by one rule.
  struct Rule {
    std::vector<Variable> variables;
    std::unique_ptr<internal::UpdateRule> rule;
  };

  template <class Refs, class Fn>
  auto run_with(Mode mode, const Refs& args, Fn& fn);
  void run_replicas(Mode mode, internal::FunctionRef<void(ReplicaContext&, int64_t)> body);
  static void set_share(ReplicaContext& context, const internal::BatchShare& share);
  int64_t num_local_replicas() const;
  ReplicaId first_replica() const;
  void run_on_chief(internal::FunctionRef<void()> body);
  std::shared_ptr<internal::ModuleBinding> bind_modules(
      const ModuleOptions& options, internal::FunctionRef<std::shared_ptr<torch::nn::Module>()> next,
      const std::source_location& place);
  Variable make_variable_from(internal::FunctionRef<at::Tensor()> initial, VariableOptions options,
                              const std::source_location& place);
  void update_each(const Variable& variable, bool for_each_replica,
                   internal::FunctionRef<void(at::Tensor&, int64_t)> fn);
  void check_replica(ReplicaId replica, const char* call) const;
  void check_ours(const internal::VariableState& variable, const char* call) const;
  Optimizer make_optimizer_from(std::vector<Rule> rules, const OptimizerOptions& named);
  static std::vector<Variable> parameters_of(const std::vector<Variable>& variables);
  void verify_memory();
  void average_parameters();

  const std::string name_;
  const int64_t verify_every_;
  std::shared_ptr<internal::ReplicaGroup> group_;
  std::unique_ptr<internal::VariableRegistry> registry_;
  std::vector<std::weak_ptr<internal::OptimizerState>> optimizers_;  // in order of creation; some may be gone
  int64_t next_optimizer_ = 0;                                       // the number in the next one's own name
};

template <class Refs, class Fn>
auto Strategy::run_with(Mode mode, const Refs& args, Fn& fn) {
  const int64_t replicas = num_local_replicas();
  std::apply([&](const auto&... each) { (internal::check_argument("run", each, replicas), ...); }, args);
  const auto call = [&](ReplicaContext& context, int64_t r) -> decltype(auto) {
    return std::apply(
        [&](const auto&... each) -> decltype(auto) {
          internal::BatchShare share;
          (internal::add_share(share, each, r, num_replicas()), ...);
          set_share(context, share);
          return fn(context, internal::component_of(each, r)...);
        },
        args);
  };
  using Result = std::decay_t<std::invoke_result_t<decltype(call)&, ReplicaContext&, int64_t>>;
  if constexpr (std::is_void_v<Result>) {
    run_replicas(mode, [&](ReplicaContext& context, int64_t r) { call(context, r); });
  } else {
    struct Slot {  // its own struct, so that replicas never share a word, as in a vector of bool
      std::optional<Result> value;
    };
    std::vector<Slot> slots(static_cast<std::size_t>(replicas));
    run_replicas(mode, [&](ReplicaContext& context, int64_t r) {
      slots[static_cast<std::size_t>(r)].value.emplace(call(context, r));
    });
    std::vector<Result> results;
    results.reserve(slots.size());
    for (Slot& slot : slots) results.push_back(std::move(*slot.value));  // NOLINT(bugprone-unchecked-optional-access)
    return PerReplica<Result>(std::move(results), first_replica());
  }
}

}  // namespace lockstep
