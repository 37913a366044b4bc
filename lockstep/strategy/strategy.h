// The public face: one training step on many replicas, whatever carries them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
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
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/optim/moving_average.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/rule_options.h"
#include "lockstep/reduce/reduction.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/axes.h"
#include "lockstep/strategy/run_args.h"
#include "lockstep/strategy/signatures.h"
#include "lockstep/variable/replicated.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

struct StateItem;
struct StrategySetup;

namespace internal {
class OptimizerState;
class VariableRegistry;
[[noreturn]] void throw_group_without_options(std::size_t group);
/// Tensors without dimensions, float64 and int64.
std::vector<at::Tensor> tensors_of(const std::vector<double>& numbers);
std::vector<at::Tensor> tensors_of(const std::vector<int64_t>& numbers);
}  // namespace internal

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
  int64_t num_workers() const;
  /// This process among them, from 0.
  int64_t worker_index() const;
  /// Whether this process is the one that writes files and reports progress.
  bool is_chief() const;
  /// The lanes or devices of this process, in the order in which replicas are dealt to them.
  const std::vector<std::string>& devices() const;
  /// How many runs were completed; the step() of the next one.
  int64_t step() const;
  uint64_t seed() const;
  /// Everything that decides results and speed, for a reader: replicas, lanes, cores, and the fingerprint of what the
  /// promise of equal bits depends on; outside of runs the table of variables too, where there are any.
  std::string describe() const;

  /// `run(fn)` or `run(arguments..., fn)`. Calls `fn(ctx, arguments...)` once for each replica of this process, each on
  /// its own thread, under the caller's grad mode and the rest of its at::ThreadLocalState, and gives what they return:
  /// a PerReplica, also with one replica; nothing where `fn` returns nothing. Replica 0's thread is the caller's.
  ///
  /// Of the arguments a PerReplica gives each replica its component, and anything else reaches each replica whole, both
  /// as const references; a std::tuple is expanded into several arguments, each by this rule.
  ///
  /// Where a step throws, the others are stopped at their next meeting point and run throws ReplicaError, nested on the
  /// first exception. So it does for every error of a meeting point, even if the steps catch it. What ends a run, the
  /// look at variables (.verify_every) and the averages of those that are trained locally, belongs to the run: its
  /// errors are ReplicaErrors of the first replica. Whenever run throws, gradients are dropped, the step is not
  /// counted, and what no completed Optimizer::step has changed is as it was.
  template <class... ArgumentsAndFn>
  auto run(ArgumentsAndFn&&... arguments_and_fn) {
    return run_last(Mode::kStep, arguments_and_fn...);
  }
  /// run() with gradients off, all modules of the strategy in evaluation mode (restored after), random streams of its
  /// own; step() does not advance.
  template <class... ArgumentsAndFn>
  auto evaluate(ArgumentsAndFn&&... arguments_and_fn) {
    return run_last(Mode::kEvaluate, arguments_and_fn...);
  }

  /// One tensor from all replicas' ones, in tree order. Without `axes` the tensors have one shape, and kMean gives each
  /// replica the same weight. With `axes` each replica's tensor is first taken together over these dimensions, and
  /// kMean is the true mean over all elements: sizes along them may differ and be 0. kMean of integers is float64
  /// and does not wrap; kSum keeps the dtype (see Reduction).
  at::Tensor reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes = {}) const;
  /// The same of numbers: each counts as a tensor without dimensions, float64 where it is a floating-point number,
  /// int64 where it is an integer or a bool. `.item<double>()` of the result is the number.
  template <class Number>
  requires std::is_arithmetic_v<Number> at::Tensor reduce(Reduction reduction, const PerReplica<Number>& values)
  const {
    using Wide = std::conditional_t<std::is_floating_point_v<Number>, double, int64_t>;
    std::vector<Wide> numbers;
    for (const Number value : values) numbers.push_back(static_cast<Wide>(value));
    return reduce(reduction, PerReplica<at::Tensor>(internal::tensors_of(numbers), values.first_replica()));
  }
  /// All replicas' tensors joined along `axis`, in replica order; they may differ in size along it only.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0) const;
  /// Replica `from`'s tensor on every worker: the `value` that the worker which has that replica gave, a copy. Other
  /// workers' `value` is not looked at.
  at::Tensor broadcast(ReplicaId from, const at::Tensor& value) const;
  /// `fn(ReplicaId)` once for each replica of this process, on the calling thread.
  template <std::invocable<ReplicaId> Fn>
  auto per_replica(Fn&& fn) const {
    using T = std::decay_t<std::invoke_result_t<Fn&, ReplicaId>>;
    std::vector<T> values;
    for (int64_t r = 0; r < num_local_replicas(); ++r) values.push_back(fn(ReplicaId(first_replica() + r)));
    return PerReplica<T>(std::move(values), first_replica());
  }
  /// The values of this process's replicas, in replica order.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& values) const {
    return std::vector<T>(values.begin(), values.end());
  }
  /// Calls `fn()` once, on the chief, and gives every worker what it returned or threw there. In `fn` calls in which
  /// all workers take part are UsageErrors, with one worker too: all but those that read what this process has,
  /// Variable::components, Variable::read of an on-write variable, variables() and the like.
  template <std::invocable Fn>
  auto on_chief(Fn&& fn) const {
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
  /// function of (seed, module name), and must build the same each time. It returns a module holder or a shared_ptr to
  /// a module, may be move-only, and is kept for export_module(). A UsageError where the modules are not alike or share
  /// something, or where a name is taken, with both places; a DivergenceError where initial values differ. Where
  /// anything is thrown, by the factory too, nothing was made.
  template <class Factory>
  auto make_module(Factory factory, const ModuleOptions& options = {},
                   const std::source_location& place = std::source_location::current()) {
    static_assert(std::is_invocable_v<Factory&>,
                  "lockstep: the factory of make_module must be callable without arguments: make_module([] { return "
                  "Net(); })");
    if constexpr (std::is_invocable_v<Factory&>) {
      return make_module_from<std::decay_t<std::invoke_result_t<Factory&>>>(std::move(factory), options, place);
    } else {
      return internal::never<Replicated<std::shared_ptr<torch::nn::Module>>>();
    }
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

  /// An optimizer over a module's parameters, a list of variables, or groups with their own options. Options are those
  /// of torch::optim: SGD, Adam, AdamW, RMSprop, Adagrad.
  template <class M, class Options>
  Optimizer make_optimizer(const Replicated<M>& module, const Options& options, const OptimizerOptions& named = {}) {
    module.binding()->check_registered();
    return make_optimizer(parameters_of(module.variables()), options, named);
  }
  template <class Options>
  Optimizer make_optimizer(const std::vector<Variable>& variables, const Options& options,
                           const OptimizerOptions& named = {}) {
    return make_optimizer_from({rule_of(variables, options)}, named);
  }
  template <class Options>
  Optimizer make_optimizer(const std::vector<ParameterGroup<Options>>& groups, const Options& defaults,
                           const OptimizerOptions& named = {}) {
    std::vector<Rule> rules;
    for (const auto& group : groups)
      rules.push_back(rule_of(group.variables, group.options ? *group.options : defaults));
    return make_optimizer_from(rules, named);
  }
  /// A UsageError where a group has no options.
  template <class Options>
  Optimizer make_optimizer(const std::vector<ParameterGroup<Options>>& groups) {
    std::vector<Rule> rules;
    for (const auto& group : groups) {
      if (!group.options) internal::throw_group_without_options(rules.size());
      rules.push_back(rule_of(group.variables, *group.options));
    }
    return make_optimizer_from(rules, {});
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
  DistributedDataset distribute(const Dataset& dataset, DistributeOptions options) const;
  /// Cuts whole tensors, a row for each sample, into the replicas' parts, by the rule of distribute(): blocks of rows
  /// in replica order, whose sizes differ by at most one, the first ones being the larger; some are empty where there
  /// are fewer rows than replicas. All workers give the same tensors. The parts are copies without gradient. Their
  /// `ids` are the rows' numbers, from 0, and `global_size` is the number of rows. Without a `target` that of the parts
  /// is undefined. A UsageError where the tensors are not dense, do not lie in the host's memory, or differ in rows.
  PerReplica<Batch> split(const at::Tensor& input, const at::Tensor& target = {}) const;

  /// Everything that the next step depends on beside the program: variables, slots, step counts, rates, and the
  /// strategy's own numbers; see StateItem.
  std::vector<StateItem> state_items() const;
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
  /// For users' own strategies: see StrategySetup. Throws the UsageErrors of its parts.
  explicit Strategy(StrategySetup setup);

 private:
  enum class Mode { kStep, kEvaluate };
  /// Variables that are updated by one rule.
  struct Rule {
    std::vector<Variable> variables;
    internal::RuleOptions options;
  };

  template <class... ArgumentsAndFn>
  auto run_last(Mode mode, ArgumentsAndFn&... arguments_and_fn);
  template <class Refs, class Fn>
  auto run_with(Mode mode, const Refs& args, Fn& fn);
  template <class Call>
  auto run_call(Mode mode, const Call& call);
  void run_replicas(Mode mode, internal::FunctionRef<void(ReplicaContext&, int64_t)> body);
  static void set_share(ReplicaContext& context, const internal::BatchShare& share);
  int64_t num_local_replicas() const;
  ReplicaId first_replica() const;
  void run_on_chief(internal::FunctionRef<void()> body) const;
  std::shared_ptr<internal::ModuleBinding> bind_modules(
      const ModuleOptions& options, internal::FunctionRef<std::shared_ptr<torch::nn::Module>()> next,
      const std::source_location& place);
  Variable make_variable_from(internal::FunctionRef<at::Tensor()> initial, VariableOptions options,
                              const std::source_location& place);
  void update_each(const Variable& variable, bool for_each_replica,
                   internal::FunctionRef<void(at::Tensor&, int64_t)> fn);
  void check_replica(ReplicaId replica, const char* call) const;
  void check_ours(const internal::VariableState& variable, const char* call) const;
  template <class M, class Factory>
  auto make_module_from(Factory factory, const ModuleOptions& options, const std::source_location& place);
  template <class Options>
  static Rule rule_of(const std::vector<Variable>& variables, const Options& options) {
    static_assert(internal::kHasRule<Options>,
                  "lockstep: make_optimizer takes torch::optim's SGDOptions, AdamOptions, AdamWOptions, RMSpropOptions "
                  "or AdagradOptions, and no other options");
    if constexpr (internal::kHasRule<Options>) return {variables, internal::RuleOptions(&options)};
    return {};
  }
  Optimizer make_optimizer_from(const std::vector<Rule>& rules, const OptimizerOptions& named);
  static std::vector<Variable> parameters_of(const std::vector<Variable>& variables);
  void finish_step();
  void undo_run(bool evaluates) noexcept;

  const std::string name_;
  const int64_t verify_every_;
  class Host;
  std::unique_ptr<Host> host_;
  std::shared_ptr<internal::ReplicaGroup> group_;
  std::unique_ptr<internal::VariableRegistry> registry_;
  std::vector<std::weak_ptr<internal::OptimizerState>> optimizers_;  // in order of creation; some may be gone
  int64_t next_optimizer_ = 0;                                       // the number in the next one's own name
};

template <class... ArgumentsAndFn>
auto Strategy::run_last(Mode mode, ArgumentsAndFn&... arguments_and_fn) {
  static_assert(sizeof...(ArgumentsAndFn) > 0, "lockstep: run and evaluate need a step function");
  constexpr std::size_t kArguments = sizeof...(ArgumentsAndFn) - 1;
  const auto all = std::tie(arguments_and_fn...);
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return run_with(mode, std::tuple_cat(internal::as_tuple(std::as_const(std::get<I>(all)))...),
                    std::get<kArguments>(all));
  }
  (std::make_index_sequence<kArguments>());
}

template <class Refs, class Fn>
auto Strategy::run_with(Mode mode, const Refs& args, Fn& fn) {
  using Step = internal::StepFunction<Fn, Refs>;
  static_assert(
      !Step::kLacksContext,
      "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): its first parameter "
      "must be a ReplicaContext&");
  static_assert(
      !Step::kLacksArguments,
      "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it has no parameter "
      "for what run was given before it");
  static_assert(!Step::kWritesArguments,
                "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it gets arguments "
                "by const reference, or takes them by value");
  static_assert(!Step::kOther,
                "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it stands last in "
                "run, takes the context by reference, and has one parameter for each argument before it (for a "
                "PerReplica its component, for a tuple each element)");
  if constexpr (Step::kFits) {
    const char* const name = mode == Mode::kEvaluate ? "evaluate" : "run";
    const int64_t replicas = num_local_replicas();
    std::apply([&](const auto&... each) { (internal::check_argument(name, each, replicas), ...); }, args);
    return run_call(mode, [&](ReplicaContext& context, int64_t r) -> decltype(auto) {
      return std::apply(
          [&](const auto&... each) -> decltype(auto) {
            internal::BatchShare share;
            (internal::add_share(share, each, r, num_replicas()), ...);
            set_share(context, share);
            return fn(context, internal::component_of(each, r)...);
          },
          args);
    });
  } else {
    return PerReplica<at::Tensor>();
  }
}

template <class Call>
auto Strategy::run_call(Mode mode, const Call& call) {
  using Result = std::decay_t<std::invoke_result_t<const Call&, ReplicaContext&, int64_t>>;
  if constexpr (std::is_void_v<Result>) {
    run_replicas(mode, [&](ReplicaContext& context, int64_t r) { call(context, r); });
  } else {
    struct Slot {  // its own struct, so that replicas never share a word, as in a vector of bool
      std::optional<Result> value;
    };
    std::vector<Slot> slots(static_cast<std::size_t>(num_local_replicas()));
    run_replicas(mode, [&](ReplicaContext& context, int64_t r) {
      slots[static_cast<std::size_t>(r)].value.emplace(call(context, r));
    });
    std::vector<Result> results;
    results.reserve(slots.size());
    for (Slot& slot : slots) results.push_back(std::move(*slot.value));  // NOLINT(bugprone-unchecked-optional-access)
    return PerReplica<Result>(std::move(results), first_replica());
  }
}

template <class M, class Factory>
auto Strategy::make_module_from(Factory factory, const ModuleOptions& options, const std::source_location& place) {
  constexpr bool kByValue = std::is_base_of_v<torch::nn::Module, M>;
  static_assert(!kByValue,
                "lockstep: the factory of make_module returns a module by value; return a std::shared_ptr to it, as "
                "std::make_shared<Net>(), or the holder that TORCH_MODULE makes");
  static_assert(kByValue || internal::ModuleHandle<M>,
                "lockstep: the factory of make_module must return a module holder or a std::shared_ptr to a module");
  if constexpr (internal::ModuleHandle<M>) {
    auto modules = std::make_shared<std::vector<M>>();
    const auto kept = std::make_shared<Factory>(std::move(factory));  // shared: it may be move-only
    auto binding = bind_modules(
        options,
        [&] {
          modules->push_back((*kept)());
          return internal::module_in(modules->back());
        },
        place);
    return Replicated<M>(std::move(binding), std::move(modules), [kept] { return (*kept)(); });
  } else {
    return internal::never<Replicated<std::shared_ptr<torch::nn::Module>>>();
  }
}

}  // namespace lockstep
