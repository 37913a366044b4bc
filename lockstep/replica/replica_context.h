// What a step may do: the object that run() hands to the step function of each replica.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/reduce/reduction.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/merge_meeting.h"

namespace lockstep {

class Strategy;
class Variable;
struct VariableOptions;

namespace internal::inline replica {
class ReplicaGroup;
struct ContextAccess;
}  // namespace internal::replica

/// A count of samples, tokens or micro-batches: any number, or a tensor of one element.
class Count {
 public:
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  Count(Number value) : value_(static_cast<double>(value)) {}  // NOLINT(google-explicit-constructor)
  /// Throws a UsageError unless it has exactly one element.
  Count(const at::Tensor& value);  // NOLINT(google-explicit-constructor)
  double value() const { return value_; }

 private:
  double value_ = 0;
};

/// One replica's view of a step. It is valid inside the call that it was passed to, on the thread of that call;
/// anywhere else each member throws a UsageError.
///
/// The calls marked "meets" are meeting points: every replica of the run must make the same ones in the same order,
/// with equal arguments except for tensor values. Where they do not, each gets a UsageError that says which replica did
/// what. Every error of a meeting fails the run, even where the step catches it: a step may catch it to clean up, and
/// every later meeting stops the step. Where another replica fails, a replica is stopped at its next meeting by an
/// exception that unwinds the step.
class ReplicaContext {
 public:
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  /// Which replica this is, over all workers.
  ReplicaId replica_id() const;
  /// How many replicas the run has, over all workers.
  int64_t num_replicas() const;
  /// Where this replica computes.
  c10::Device device() const;
  /// How many runs of this strategy were completed before this one. Part of saved state. Evaluations do not count.
  int64_t step() const;

  /// `mean_loss`, a mean over this replica's part of the Batch that was passed to run(), times the part's share of the
  /// global batch. Then the gradients of all replicas add up to the gradient of one device on the whole batch. For an
  /// empty part the result is an exact 0 that keeps the graph, and the gradients of its backward count as zero. Throws
  /// a UsageError unless exactly one Batch was passed to run().
  ///
  /// Pass the whole loss through it. A replica whose calls all had weight 0 brings no gradient to the next
  /// optimizer.step, not even the gradient of a penalty on the weights that was added outside. Write
  /// `scale_loss(mean_loss + penalty)`, which gives the penalty the same share as the loss. See docs/training.md.
  at::Tensor scale_loss(const at::Tensor& mean_loss,
                        const std::source_location& place = std::source_location::current()) const;
  /// The same with the caller's own counts: `mean_loss` times part / whole, where `whole` is the total over all
  /// replicas and all micro-batches of the step, as `all_reduce(Reduction::kSum, part)` gives it. A loss that has its
  /// weight already is given as `scale_loss(loss, 1, 1)`, which leaves it as it is and says so.
  at::Tensor scale_loss(const at::Tensor& mean_loss, Count part, Count whole,
                        const std::source_location& place = std::source_location::current()) const;
  /// Samples in the whole global batch of the Batch that was passed to run(). Throws a UsageError unless there was
  /// exactly one.
  int64_t global_batch_size() const;

  /// Meets. The reduction of all replicas' tensors, which are equal in shape and dtype, by the strategy's reducer: in
  /// tree order unless it was given another. All replicas get the same bits, each in its own tensor. kMean of integers
  /// is float64. Differentiable: every replica must then also go backward through it, which meets again.
  at::Tensor all_reduce(Reduction reduction, const at::Tensor& value,
                        const std::source_location& place = std::source_location::current()) const;
  /// Meets once for the whole list.
  std::vector<at::Tensor> all_reduce(Reduction reduction, const std::vector<at::Tensor>& values,
                                     const std::source_location& place = std::source_location::current()) const;
  /// Of a number: the result is a tensor without dimensions, of int64 or float64, without gradient.
  template <class Number>
  requires std::is_arithmetic_v<Number> at::Tensor all_reduce(
      Reduction reduction, Number value, const std::source_location& place = std::source_location::current())
  const {
    using Wide = std::conditional_t<std::is_floating_point_v<Number>, double, int64_t>;
    return all_reduce_number(reduction, static_cast<Wide>(value), place);
  }
  /// Meets. All replicas' tensors, joined along `axis` in replica order; they may differ in size along `axis` only.
  /// Differentiable like all_reduce.
  at::Tensor all_gather(const at::Tensor& value, int64_t axis = 0,
                        const std::source_location& place = std::source_location::current()) const;
  /// Meets. Replica `from`'s tensor, a copy for each replica, without gradient. The `value` of other replicas is
  /// ignored.
  at::Tensor broadcast(ReplicaId from, const at::Tensor& value,
                       const std::source_location& place = std::source_location::current()) const;

  /// Meets. Calls `fn(strategy, PerReplica<Args>...)` once in each process, with what each replica passed, outside of
  /// any replica: there the strategy's own calls (reduce, gather, Variable::read) are allowed. Each replica gets what
  /// `fn` returns, or its component where `fn` returns a PerReplica, with tensors of its own, without gradient: a
  /// tensor that anything else refers to, or shares memory with, is copied. Tensors are found in standard containers,
  /// torch::OrderedDict, tuples, optionals, variants, torch::data::Example and a Batch, and in a struct of the program
  /// where a function `for_each_tensor(Struct&, fn)` beside it calls `fn` on each member with tensors. A PerReplica
  /// with another number of values than this process has replicas is a UsageError. Random operators in `fn` draw from a
  /// separate stream.
  template <class Fn, class... Args>
  auto merge_call(Fn&& fn, Args&&... args) const {
    constexpr bool kCallable = std::is_invocable_v<Fn&, Strategy&, PerReplica<std::decay_t<Args>>...>;
    static_assert(
        kCallable,
        "lockstep: the function of merge_call must be callable as fn(Strategy&, const PerReplica<T>&...), with "
        "one parameter for each argument after it");
    if constexpr (kCallable) {
      using Call = internal::MergeMeeting<std::remove_reference_t<Fn>, std::decay_t<Args>...>;
      Call call(*this, fn, std::forward<Args>(args)...);
      merge(call);
      return call.result(local_index());
    }
  }

  /// Returns the strategy's Variable of that name. The first step that asks for it makes it: that call meets, and every
  /// replica must make it, in the same order, with the same name and options. `initial()` is called once for all
  /// replicas, outside of any replica, under a random stream that is a function of (seed, name). Later calls, from any
  /// place and in any step, return the same variable and do not meet; their options must be the first call's. Throws a
  /// UsageError for a name that was made outside of steps.
  ///
  /// Such a variable lives as long as the strategy. If the step that made it fails, it stays, with its initial value.
  template <class Options = VariableOptions>
  auto make_variable(const std::string& name, const std::function<at::Tensor()>& initial, const Options& options = {},
                     const std::source_location& place = std::source_location::current()) const {
    return find_or_make(name, initial, options, place);  // a template, because here a Variable is only a name
  }

  /// This replica's generator: a stream that is a function of (seed, replica, step). LibTorch's random operators draw
  /// from it inside a step where they are given no other.
  at::Generator random() const;
  /// A generator that gives all replicas the same numbers, if all make the same draws.
  at::Generator shared_random() const;

 private:
  at::Tensor all_reduce_number(Reduction reduction, int64_t value, const std::source_location& place) const;
  at::Tensor all_reduce_number(Reduction reduction, double value, const std::source_location& place) const;
  friend class internal::ReplicaGroup;
  friend struct internal::ContextAccess;
  template <class Fn, class... Args>
  friend class internal::MergeMeeting;

  /// What the Batch that was passed to run() says about this replica's part.
  struct Share {
    int batches = 0;  // how many Batch arguments there were
    int64_t part = 0;
    int64_t whole = 0;
  };

  ReplicaContext(internal::ReplicaGroup& group, int64_t local_index) : group_(group), local_index_(local_index) {}
  /// Throws the UsageError of a context that is used where it is not valid.
  void check_is_current(const char* call) const;
  at::Tensor weigh(const at::Tensor& mean_loss, Count part, Count whole, bool is_of_batch,
                   const std::source_location& place) const;
  const Share& the_batch(const char* call) const;
  /// A sum over the replicas of what has no graph is perhaps of counts, by which the program weighs its loss.
  void look_for_counts_in(Reduction reduction, const at::Tensor& value) const;
  /// Adds a finding where a loss depends on rows of padding.
  void look_for_padding_in(const at::Tensor& loss) const;
  void merge(internal::Meeting& meeting) const;
  Variable find_or_make(const std::string& name, const std::function<at::Tensor()>& initial,
                        const VariableOptions& options, const std::source_location& place) const;
  int64_t local_index() const { return local_index_; }
  Strategy& strategy() const;

  internal::ReplicaGroup& group_;
  const int64_t local_index_;
  Share share_;
  int64_t padding_ = 0;  // rows of the Batch of share_ that are no samples
  const std::shared_ptr<internal::ScaledLosses> losses_ = std::make_shared<internal::ScaledLosses>();
  internal::ScaledBackwards dropped_;         // the backwards up to the last drop of gradients, by a failed run
  mutable bool had_loss_not_finite_ = false;  // in the run under way
};

}  // namespace lockstep
