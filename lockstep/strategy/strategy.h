// The base of all strategies: one training step on many replicas, and what is done with them outside of steps.
#pragma once

#include <ATen/core/TensorBody.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/capture/captured_step.h"
#include "lockstep/core/findings.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/core/sent_value.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/core/tuning/slots.h"
#include "lockstep/core/tuning/update_form.h"
#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/data/stages/split.h"
#include "lockstep/optim/moving_average.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/rules/rule_options.h"
#include "lockstep/reduce/reduction.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/axes.h"
#include "lockstep/strategy/run_args.h"
#include "lockstep/strategy/signatures.h"
#include "lockstep/variable/module/replicated.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

struct StateItem;
struct StrategySetup;

namespace internal::inline optim {
class OptimizerState;
}  // namespace internal::optim
namespace internal::inline variable {
class VariableRegistry;
}  // namespace internal::variable
namespace internal::inline strategy {
struct StrategyAccess;
[[noreturn]] void throw_group_without_options(std::size_t group);
/// Tensors without dimensions, float64 and int64.
std::vector<at::Tensor> tensors_of(const std::vector<double>& numbers);
std::vector<at::Tensor> tensors_of(const std::vector<int64_t>& numbers);
}  // namespace internal::strategy

struct OnChiefOptions {
  std::chrono::milliseconds limit = {};  // how long the other workers wait for the function; 0: WorkerTimeouts::work
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
  int64_t num_workers() const;
  /// This process among them, from 0.
  int64_t worker_index() const;
  /// Whether this process is the one that writes files and reports progress.
  bool is_chief() const;
  /// The lanes or devices of this process, in the order in which replicas are dealt to them.
  const std::vector<std::string>& devices() const;
  /// How many runs were completed; the step() of the next one.
  int64_t step() const;
  /// Whether any worker had been asked for a stop (stop_on_signal, request_stop) when the last completed run or
  /// evaluation ended. All workers have the same answer after the same run, so a loop that ends by it ends on all.
  bool stop_requested() const;
  uint64_t seed() const;
  /// Everything that decides results and speed, as text for a reader: replicas, lanes, cores, and the fingerprint of
  /// what the promise of equal bits depends on. Outside of runs the table of variables follows, if there are any.
  std::string describe() const;

  /// `run(fn)` or `run(arguments..., fn)`. Calls `fn(ctx, arguments...)` once for each replica of this process, each on
  /// its own thread, under the caller's grad mode and the rest of its at::ThreadLocalState. Gives a PerReplica of what
  /// the calls returned, also with one replica; where `fn` returns a std::tuple, a std::tuple of a PerReplica for each
  /// element; nothing where `fn` returns nothing. The first local replica runs on the caller's thread.
  ///
  /// An argument that is a PerReplica gives each replica its component; any other argument reaches each replica whole.
  /// Both are const references. A std::tuple is expanded into several arguments, each by this rule. Where workers give
  /// batches of a data set, or of split(), that are not parts of the same global batch, all get a UsageError
  /// (LS-WORKER-ORDER) before any replica runs.
  ///
  /// Where a replica's step throws, the other replicas are stopped at their next meeting point, and run throws a
  /// ReplicaError that is nested on the first exception. An error of a meeting point fails the run even if every step
  /// catches it. The verification of variables (.verify_every) and the averaging of locally trained variables belong to
  /// the run: their errors are ReplicaErrors of the first replica. When run throws, gradients are dropped, the step is
  /// not counted, and everything is rolled back but what a completed Optimizer::step has changed. Of a variable that
  /// each replica trains locally, nothing is rolled back once such a step has changed it.
  template <class... ArgumentsAndFn>
  auto run(ArgumentsAndFn&&... arguments_and_fn) {
    return run_step(Mode::kStep, arguments_and_fn...);
  }
  /// `fn` as a step that is recorded at its first calls and replayed afterwards, with the same bits: given to run() and
  /// evaluate() in place of `fn`. See CapturedStep. A handle, which may be made at any time.
  template <class Fn>
  CapturedStep<std::decay_t<Fn>> capture(Fn&& fn) const {
    return CapturedStep<std::decay_t<Fn>>(group_, std::forward<Fn>(fn));
  }
  /// run() with gradients off, with all modules of the strategy in evaluation mode (their modes are restored after it),
  /// and with random streams that training does not use. Where replicas have different values of a module's buffer, all
  /// have the value that a read gives, as an exported module has it, and training goes on from their own. step() does
  /// not advance. Where it throws, gradients stay as they are.
  template <class... ArgumentsAndFn>
  auto evaluate(ArgumentsAndFn&&... arguments_and_fn) {
    return run_step(Mode::kEvaluate, arguments_and_fn...);
  }

  /// Reduces the tensors of all replicas to one, in tree order. Without `axes` the tensors have one shape, and kMean
  /// gives each replica the same weight. With `axes` each replica's tensor is first reduced over these dimensions, and
  /// kMean is the true mean over all elements: sizes along these dimensions may differ and may be 0. kMean of integers
  /// is float64 and does not wrap; kSum keeps the dtype (see Reduction).
  at::Tensor reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes = {}) const;
  /// The same for numbers: each counts as a tensor without dimensions, float64 where it is a floating-point number,
  /// int64 where it is an integer or a bool. `.item<double>()` of the result is the number.
  template <class Number>
  requires std::is_arithmetic_v<Number> at::Tensor reduce(Reduction reduction, const PerReplica<Number>& values)
  const {
    using Wide = std::conditional_t<std::is_floating_point_v<Number>, double, int64_t>;
    std::vector<Wide> numbers;
    for (const Number value : values) numbers.push_back(static_cast<Wide>(value));
    return reduce(reduction, PerReplica<at::Tensor>(internal::tensors_of(numbers), values.first_replica()));
  }
  /// All replicas' tensors concatenated along `axis`, in replica order. Only their sizes along `axis` may differ.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0) const;
  /// Replica `from`'s tensor on every worker: a copy of the `value` that this replica's worker gave. The `value` of
  /// other workers is ignored.
  at::Tensor broadcast(ReplicaId from, const at::Tensor& value) const;
  /// `fn(ReplicaId)` once for each replica of this process, on the calling thread.
  template <std::invocable<ReplicaId> Fn>
  auto per_replica(Fn&& fn) const {
    require_outside_of_step("Strategy::per_replica", "use ctx.replica_id(): the step runs once for each replica");
    using T = std::decay_t<std::invoke_result_t<Fn&, ReplicaId>>;
    std::vector<T> values;
    for (int64_t r = 0; r < num_local_replicas(); ++r) values.push_back(fn(ReplicaId(first_replica() + r)));
    return PerReplica<T>(std::move(values), first_replica());
  }
  /// The values of this process's replicas, in replica order.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& values) const {
    require_outside_of_step("Strategy::local_results", "each replica has its own value; merge_call gives all of them");
    return std::vector<T>(values.begin(), values.end());
  }
  /// Calls `fn()` once, on the chief, and gives every worker the result. What `fn` throws is thrown on the chief, and a
  /// PeerError with its text on the other workers. In `fn`, a call in which all workers take part is a UsageError, with
  /// one worker too. Calls that only read what this process has are allowed: Variable::components, Variable::read of an
  /// on-write variable, variables() and the like.
  ///
  /// The other workers wait as long as `options.limit` says. After that, or where one of them fails, the run has ended,
  /// and the chief's log says so. Nothing interrupts `fn`: the call throws the PeerError when `fn` has returned, and
  /// check_workers() throws it in `fn`.
  ///
  /// With several workers the result is nothing, a number, an enumerator, a string, a dense tensor in the host's
  /// memory, or a vector, array, optional, pair, tuple or map of these; otherwise a UsageError before `fn` is called.
  /// With any number of workers tensors come as contiguous copies without gradient, on the chief too.
  template <std::invocable Fn>
  auto on_chief(Fn&& fn, const OnChiefOptions& options = {},
                const std::source_location& place = std::source_location::current()) const {
    using Result = std::decay_t<std::invoke_result_t<Fn&>>;
    if constexpr (std::is_void_v<Result>) {
      run_on_chief([&] { fn(); }, options, place);
    } else {
      std::optional<Result> result;
      if constexpr (internal::Sendable<Result>) {
        internal::SentValue sent = run_and_send_from_chief(
            [&](internal::SentValue& to) { internal::Sending<Result>::put(to, fn()); }, options, place);
        result.emplace(internal::Sending<Result>::get(sent));
      } else {
        require_one_worker_for_result();
        run_on_chief([&] { result.emplace(fn()); }, options, place);
      }
      return Result(std::move(*result));  // NOLINT(bugprone-unchecked-optional-access): it was called or received
    }
  }

  /// Throws the PeerError with which the run has ended: another worker has failed or left, or waits for this one no
  /// longer. Otherwise returns at once. For code that takes long while other workers wait: in on_chief, in a factory,
  /// where data are read, in a step. Any thread may call. With one worker nothing can have happened.
  void check_workers() const;

  /// A replicated module: `factory()` is called once for each replica, under a random stream that is a function of
  /// (seed, module name), and must build the same module each time. It returns a module holder or a shared_ptr to a
  /// module, may be move-only, and is kept for export_module(). A UsageError where the modules are not alike or share
  /// a tensor or submodule, or where a name is taken (it names both places); a DivergenceError where initial values
  /// differ. When this or the factory throws, nothing was made.
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

  /// A variable with an initial value of any dtype; see Variable. A UsageError for a name that is taken (it names both
  /// places), for a mean of integers, and for a sum or mean of a dtype that cannot be added: bool, float8, uint16 to
  /// uint64. When it throws, nothing was made. Inside a step, call ReplicaContext::make_variable instead.
  Variable make_variable(const at::Tensor& initial, VariableOptions options = {},
                         const std::source_location& place = std::source_location::current()) {
    return make_variable_from([&]() -> at::Tensor { return initial; }, std::move(options), place);
  }
  /// The same from a function, which is called once, under a random stream that is a function of (seed, name).
  template <InitialValue Initial>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): moved on, which the check overlooks in a template
  Variable make_variable(Initial&& initial, VariableOptions options = {},
                         const std::source_location& place = std::source_location::current()) {
    return make_variable_from([&]() -> at::Tensor { return initial(); }, std::move(options), place);
  }

  /// An optimizer over a module's parameters, a list of variables, or groups with their own options. Options are those
  /// of torch::optim (SGD, Adam, AdamW, RMSprop, Adagrad), or UpdateRuleOptions for a rule of the program's own.
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

  /// Moving averages of a module's parameters, or of a list of variables, which begin with the present values. A
  /// UsageError for a variable that is not mirrored or not floating-point, for a decay outside of [0, 1), and where the
  /// name of an average is taken.
  template <class M>
  MovingAverage make_moving_average(const Replicated<M>& module, const MovingAverageOptions& options = {},
                                    const std::source_location& place = std::source_location::current()) {
    return make_moving_average(parameters_of(module.variables()), options, place);
  }
  MovingAverage make_moving_average(const std::vector<Variable>& variables, const MovingAverageOptions& options = {},
                                    const std::source_location& place = std::source_location::current());

  /// Probable mistakes that were noticed in steps, each with the number of steps in which it was seen. The log has
  /// reported each once. Any thread.
  std::vector<Finding> findings() const;

  /// Deals a data set, or a stream, to the replicas. A UsageError where a living data set of this strategy has the same
  /// name. With several workers all of them make this call, with the same data and options: a UsageError
  /// (LS-WORKER-ORDER) where these differ, a PeerError where it fails on another worker.
  DistributedDataset distribute(const Dataset& dataset, DistributeOptions options) const;
  DistributedDataset distribute(const Stream& stream, DistributeOptions options) const;
  /// For programs that shard by themselves: `fn(const InputContext&)` is called once on each worker and returns this
  /// worker's Dataset or Stream, whose samples are dealt to the worker's replicas in order: to each its part of
  /// `global_batch`, or, where that is 0, one element of the stream. All workers make the same steps; those that have
  /// nothing left have empty parts. The first batches of the replicas are compared: see findings().
  template <class Fn>
  DistributedDataset distribute_from_function(Fn&& fn, DistributeOptions options = {}) const {
    static_assert(std::is_invocable_v<Fn&, const InputContext&>,
                  "lockstep: the function of distribute_from_function must be callable as fn(const InputContext&)");
    std::optional<Stream> stream;
    at_work(options.limit, [&] { stream.emplace(internal::as_stream(fn(input_context()))); });
    return distribute_own(*stream, std::move(options));
  }
  /// Cuts tensors, with one row for each sample, into the replicas' parts by the rule of distribute(): blocks of rows
  /// in replica order, whose sizes differ by at most one, the larger ones first. Some parts are empty where there are
  /// fewer rows than replicas. All workers give the same tensors; a run that is given the parts compares them. The
  /// parts are copies without gradient; their `ids` are the row numbers, from 0, and `global_size` is the number of
  /// rows. Without a `target`, the parts' targets are undefined. A UsageError where a tensor is not dense or not in the
  /// host's memory, or where the numbers of rows differ. Recurrent layers have their samples along dimension 1,
  /// [time, samples, ...]: see SplitOptions.
  PerReplica<Batch> split(const at::Tensor& input, const at::Tensor& target = {},
                          const SplitOptions& options = {}) const;
  /// The same of any number of tensors by name: "input" and "target" become these members of Batch, all others stand in
  /// Batch::more. Without an "input", the parts' inputs are undefined.
  PerReplica<Batch> split(const std::map<std::string, at::Tensor>& tensors, const SplitOptions& options = {}) const;
  /// The same of a list: the input, the target, and in Batch::more "2", "3" and so on.
  PerReplica<Batch> split(const std::vector<at::Tensor>& tensors, const SplitOptions& options = {}) const;
  PerReplica<Batch> split(std::initializer_list<at::Tensor> tensors, const SplitOptions& options = {}) const;
  template <std::convertible_to<at::Tensor>... T>
  PerReplica<Batch> split(const std::tuple<T...>& tensors, const SplitOptions& options = {}) const {
    return split(std::apply([](const auto&... each) { return std::vector<at::Tensor>{each...}; }, tensors), options);
  }

  /// The state on which the next step depends, beside the program and its data: variables, slots, step counts, learning
  /// rates, the cursors of data sets that have a name, and the strategy's own numbers. See StateItem.
  std::vector<StateItem> state_items() const;
  /// All living variables of the strategy in order of creation, those of modules and optimizers included.
  std::vector<Variable> variables() const;
  /// A table of them for a reader: name, kind, dtype and shape, bytes, number of copies, device. Where there are many,
  /// variables whose names begin alike share a row.
  std::string describe_variables() const;
  /// Calls `fn(value, args...)` once for each copy of an on-write variable, or for each component of an on-read one;
  /// `value` is a tensor to change in place, without gradient. A PerReplica among `args` gives each replica its
  /// component, and then `fn` is called once for each replica of this process. The calls must leave equal values in an
  /// on-write variable: otherwise a DivergenceError. When it throws, nothing has changed.
  template <class Fn, class... Args>
  void update(const Variable& variable, Fn&& fn, const Args&... args) {
    (internal::check_argument("update", args, num_local_replicas()), ...);
    const bool for_each_replica = (internal::IsPerReplica<Args>::value || ...);
    update_each(variable, for_each_replica,
                [&](at::Tensor& value, [[maybe_unused]] int64_t r) { fn(value, internal::component_of(args, r)...); });
  }
  /// Assigns replica `from`'s `value` to a variable on all workers; the `value` of workers without this replica is
  /// ignored. See Variable::assign. Inside a step, call it in a merge function.
  void update_from(ReplicaId from, const Variable& variable, const at::Tensor& value);

 protected:
  /// For users' own strategies: see StrategySetup. Throws the UsageErrors of its parts.
  explicit Strategy(StrategySetup setup);

 private:
  friend struct internal::StrategyAccess;
  enum class Mode { kStep, kEvaluate };
  /// Variables that are updated by one rule.
  struct Rule {
    std::vector<Variable> variables;
    internal::RuleOptions options;
  };

  /// Checks the arguments and lets run_replicas() call the step function, the last of them, with the others.
  template <class... ArgumentsAndFn>
  auto run_step(Mode mode, ArgumentsAndFn&... arguments_and_fn);
  /// `origins` says which batches the run is given: it must be the same on all workers.
  void run_replicas(Mode mode, std::string_view origins, internal::FunctionRef<void(ReplicaContext&, int64_t)> body);
  DistributedDataset deal(std::shared_ptr<const internal::Deal> deal, bool is_stream) const;
  DistributedDataset distribute_own(const Stream& stream, DistributeOptions options) const;
  InputContext input_context() const;
  /// Calls `fn`, code of the program's own for which the other workers wait.
  void at_work(std::chrono::milliseconds limit, internal::FunctionRef<void()> fn) const;
  void require_free_name(const DistributeOptions& options) const;
  /// Throws the UsageError of a call inside a step, where `inside` says what to do.
  static void require_outside_of_step(const char* call, const char* inside);
  /// Adds a finding where replicas got the same samples. All workers call it where these have no Batch::origin.
  void watch(const PerReplica<Batch>& batches);
  template <class T>
  void watch(const T& /*argument*/) {}
  static void set_share(ReplicaContext& context, const internal::BatchShare& share);
  internal::BatchUses& batch_uses() const;
  int64_t num_local_replicas() const;
  ReplicaId first_replica() const;
  void run_on_chief(internal::FunctionRef<void()> body, const OnChiefOptions& options,
                    const std::source_location& place) const;
  /// Gives every worker what `body` has put in on the chief.
  internal::SentValue run_and_send_from_chief(internal::FunctionRef<void(internal::SentValue&)> body,
                                              const OnChiefOptions& options, const std::source_location& place) const;
  void require_one_worker_for_result() const;
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
                  "or AdagradOptions, or UpdateRuleOptions, and no other options");
    if constexpr (internal::kHasRule<Options>) return {variables, internal::RuleOptions(&options)};
    return {};
  }
  Optimizer make_optimizer_from(const std::vector<Rule>& rules, const OptimizerOptions& named);
  static std::vector<Variable> parameters_of(const std::vector<Variable>& variables);
  void finish_step();
  void undo_run(bool evaluates) noexcept;

  const std::string name_;
  const int64_t verify_every_;
  const internal::Factoring factoring_;
  const UpdateForm update_form_;
  const Slots slots_;
  const WireFormat wire_;
  class Host;
  std::unique_ptr<Host> host_;
  std::shared_ptr<internal::ReplicaGroup> group_;
  std::unique_ptr<internal::VariableRegistry> registry_;
  std::vector<std::weak_ptr<internal::OptimizerState>> optimizers_;  // in order of creation; some may be gone
  int64_t next_optimizer_ = 0;                                       // the number in the next one's own name
  mutable std::map<std::string, std::weak_ptr<const internal::Deal>> named_data_sets_;  // some may be gone
  /// In order of creation, with how they are dealt; some may be gone.
  mutable std::vector<std::pair<std::weak_ptr<const internal::Deal>, std::string>> data_sets_;
};

}  // namespace lockstep

#include "lockstep/strategy/strategy-inl.h"
