// What the chief of a run of parameter servers does: it schedules steps and waits for them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/server/remote_value.h"
#include "lockstep/server/step_call.h"
#include "lockstep/server/worker_context.h"

namespace lockstep {

class ParameterServerStrategy;

/// A step's function with its name, as ParameterServerStrategy::step gives it.
template <class Fn>
class Step {
 public:
  const std::string& name() const { return name_; }

  /// For the library's own use.
  Step(std::string name, uint32_t kind, std::shared_ptr<Fn> fn, const void* owner)
      : name_(std::move(name)), kind_(kind), fn_(std::move(fn)), owner_(owner) {}
  uint32_t kind() const { return kind_; }
  const void* owner() const { return owner_; }
  const std::shared_ptr<Fn>& function() const { return fn_; }

 private:
  std::string name_;
  uint32_t kind_;
  std::shared_ptr<Fn> fn_;
  const void* owner_;  // the strategy, by its gate
};

namespace internal::inline server {

class ChiefTask;
class CoordinatedRun;
class TrainedSteps;

/// The memory that an argument of schedule() takes; of layouts other than strided and COO at most that.
uint64_t bytes_of_argument(const at::Tensor& tensor);

/// What a step is given for an argument of schedule().
template <class T>
struct StepArgument {
  static const T& of(const T& given) { return given; }
  static StepInput note(const T& given, uint64_t& bytes, std::vector<std::shared_ptr<ScheduledStep>>& /*after*/) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      bytes += bytes_of_argument(given);
    } else if constexpr (std::is_same_v<T, std::string>) {
      bytes += given.size();
    } else {
      bytes += sizeof(T);
    }
    return to_step_value(given);
  }
};
template <class T>
struct StepArgument<RemoteValue<T>> {
  static T of(const RemoteValue<T>& given) {
    return from_step_value<T>(*static_cast<const StepValue*>(result_at_hand(*given.scheduled()).get()));
  }
  static StepInput note(const RemoteValue<T>& given, uint64_t& /*bytes*/,
                        std::vector<std::shared_ptr<ScheduledStep>>& after) {
    if (!given.scheduled()) throw_empty_remote_value();
    after.push_back(given.scheduled());
    return given.scheduled();
  }
};

template <class T>
inline constexpr bool kIsStepResult = std::is_void_v<T> || kIsStepValue<T>;

/// A UsageError (LS-OTHER-STRATEGY) where the step is not of the chief's strategy.
void require_step_of(const ChiefTask& chief, const void* owner, const std::string& name);
std::shared_ptr<ScheduledStep> schedule_call(CoordinatedRun& run, uint32_t kind, StepCall call, uint64_t bytes,
                                             const std::vector<std::shared_ptr<ScheduledStep>>& after);

/// The mean of what `fn` gives for the parts of the data set, each by its samples; undefined where it `returns`
/// nothing. `kind` is that of the step whose function it is.
at::Tensor mean_over(CoordinatedRun& run, const DistributedDataset& data, bool returns, std::optional<uint32_t> kind,
                     const std::function<at::Tensor(WorkerContext&, const Batch&)>& fn);

/// std::string for a literal.
template <class T>
using KeptArgument = std::conditional_t<std::is_convertible_v<T, const char*>, std::string, std::decay_t<T>>;

/// A copy of a tensor without its graph.
at::Tensor copied(const at::Tensor& tensor);
template <class T>
KeptArgument<T> kept_argument(T&& given) {
  if constexpr (std::is_same_v<std::decay_t<T>, at::Tensor>) {
    return copied(given);
  } else {
    return KeptArgument<T>(std::forward<T>(given));
  }
}

}  // namespace internal::server

/// Given to the function of ParameterServerStrategy::coordinate, and valid while that runs; afterwards its calls are
/// UsageErrors (LS-COORDINATE), until the strategy coordinates again or is gone. Several threads of the program may use
/// it at once.
///
/// The first error of a step comes once: from schedule(), join(), done() or RemoteValue::get(), whichever comes first,
/// as a ReplicaError that is nested on the step's own exception. All steps that do not count yet are closed then; what
/// they pushed is dropped, and their get() throws CancelledError. Afterwards scheduling works again.
class Coordinator {
 public:
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Lets a worker call `step`'s function as fn(WorkerContext&, arguments...). Returns at once; where 1,000,000 steps
  /// or 64 MiB of arguments wait, when there is room. Arguments are tensors, which are copied, numbers, strings, and
  /// RemoteValues of earlier steps: the function gets what these returned, and runs after them. The function returns
  /// nothing, a number, a string or a tensor.
  template <class Fn, class... Arguments>
  auto schedule(const Step<Fn>& step, Arguments&&... arguments) {
    internal::require_step_of(*chief_, step.owner(), step.name());
    using Kept = std::tuple<internal::KeptArgument<Arguments>...>;
    auto kept = std::make_shared<Kept>(internal::kept_argument<Arguments>(std::forward<Arguments>(arguments))...);
    const auto invoke = [fn = step.function(), kept](WorkerContext& context) {
      return std::apply(
          [&](const auto&... each) {
            return (*fn)(context, internal::StepArgument<std::decay_t<decltype(each)>>::of(each)...);
          },
          *kept);
    };
    using Result = std::decay_t<std::invoke_result_t<decltype(invoke)&, WorkerContext&>>;
    static_assert(internal::kIsStepResult<Result>,
                  "lockstep: a scheduled step returns nothing, a number, a string or a tensor");
    uint64_t bytes = 0;
    std::vector<std::shared_ptr<internal::ScheduledStep>> after;
    internal::StepCall call;
    std::apply(
        [&](const auto&... each) {
          (call.inputs.push_back(internal::StepArgument<std::decay_t<decltype(each)>>::note(each, bytes, after)), ...);
        },
        *kept);
    call.call = [invoke](WorkerContext& context) { return internal::result_of_call([&] { return invoke(context); }); };
    return RemoteValue<Result>(internal::schedule_call(run(), step.kind(), std::move(call), bytes, after));
  }

  /// Calls `fn(WorkerContext&, const Batch&)` for each part of an epoch of `data` that has samples, on all workers,
  /// with gradients off and modules in evaluation mode, and gives the mean of what it returns: each value counts by the
  /// samples of its part, added up in float64 in the order of the parts. So `fn` returns a mean over its part's
  /// samples, as a number, for which this gives a double, or a tensor of one shape for all parts; or nothing.
  ///
  /// It begins when what was scheduled before counts, and throws that's first error. It sees one state of the servers:
  /// schedule() and changes by other threads wait meanwhile. It takes no numbers of steps, and leaves the place in
  /// `data` as it is. Results have the same bits on any number of workers where the parts are the same: with
  /// `.staleness = 0` a batch has a part for each worker, otherwise it is one. What `fn` assigns, by metrics too,
  /// counts with the evaluation or not at all.
  ///
  /// Where `fn` throws, this throws a ReplicaError that is nested on its exception, and when no call of `fn` is under
  /// way any more. A DataError (LS-NO-SAMPLES) for data without samples, where `fn` returns something.
  template <class Fn>
  requires std::is_invocable_v<Fn&, WorkerContext&, const Batch&>
  auto evaluate(const DistributedDataset& data, Fn&& fn) { return evaluate_by(data, std::nullopt, fn); }
  /// The same with a step of ParameterServerStrategy::step, whose function takes a batch beside its context. Workers
  /// that are processes know no other function: there the first form is a UsageError (LS-EVALUATE), and so is a step
  /// whose function does not say that it takes a Batch. The chief reads `data` and sends parts. Where a worker is lost,
  /// its part goes to another one.
  template <class Fn>
  auto evaluate(const DistributedDataset& data, const Step<Fn>& step) {
    internal::require_step_of(*chief_, step.owner(), step.name());
    return evaluate_by(data, step.kind(), *step.function());
  }

  /// Waits until all steps that were scheduled before have been decided. In step, a last round that is not full then
  /// counts as it is: what is missing are parts of weight 0.
  void join();
  /// Whether all steps that were scheduled have been decided.
  bool done();
  /// Closes all steps that do not count yet. Functions that run go on to their end, and what they push is refused.
  void cancel();
  /// How many steps count, those before a restore included: a program that was started again schedules the rest.
  int64_t steps() const;
  /// The results of all, in order. Waits for them.
  template <class T>
  std::vector<T> get(const std::vector<RemoteValue<T>>& values) {
    std::vector<T> all;
    for (const RemoteValue<T>& one : values) all.push_back(one.get());
    return all;
  }

 private:
  friend class ParameterServerStrategy;
  friend class internal::TrainedSteps;
  explicit Coordinator(internal::CoordinatedRun& run);
  /// A UsageError (LS-COORDINATE) where the run has ended.
  internal::CoordinatedRun& run() const;

  template <class Fn>
  auto evaluate_by(const DistributedDataset& data, std::optional<uint32_t> kind, Fn& fn) {
    using Result = std::decay_t<std::invoke_result_t<Fn&, WorkerContext&, const Batch&>>;
    static_assert(std::is_void_v<Result> || std::is_arithmetic_v<Result> || std::is_same_v<Result, at::Tensor>,
                  "lockstep: the function of Coordinator::evaluate returns nothing, a number or a tensor");
    constexpr bool kReturns = !std::is_void_v<Result>;
    const at::Tensor mean = internal::mean_over(
        run(), data, kReturns, kind,
        [&fn](WorkerContext& context, const Batch& part) { return internal::value_of_part(fn, context, part); });
    if constexpr (std::is_arithmetic_v<Result>) {
      return mean.template item<double>();
    } else if constexpr (kReturns) {
      return mean;
    }
  }

  std::shared_ptr<internal::ChiefTask> chief_;  // of the run, which a restore begins anew
  internal::CoordinatedRun& run_;               // gone when the chief says that the run has ended
};

}  // namespace lockstep
