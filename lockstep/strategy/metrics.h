// Metrics over a whole epoch or evaluation, right for uneven and empty parts: each replica adds to its own component,
// and result() adds the components.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/replica/replica_context.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {

class Strategy;

namespace internal::inline strategy {

/// The context that a metric's update is given: that of a replica in Strategy::run or evaluate, or, in a scheduled step
/// of parameter servers, that of the worker (WorkerContext). Used for the length of the call.
class MetricContext {
 public:
  MetricContext(const ReplicaContext& replica) : replica_(&replica) {}  // NOLINT(google-explicit-constructor)
  template <std::derived_from<WorkerValues> Worker>
  MetricContext(Worker& worker) : worker_(&worker) {}  // NOLINT(google-explicit-constructor)

  /// Throws a UsageError that names `call` where the replica's step does not run. A worker's context checks that when
  /// it is used.
  void check_is_current(const char* call) const;
  /// The replica's number; -1 of a worker, which the error of its step names.
  int64_t replica() const;
  void add(const Variable& variable, const at::Tensor& value) const;

 private:
  const ReplicaContext* replica_ = nullptr;
  WorkerValues* worker_ = nullptr;
};

}  // namespace internal::strategy

namespace metrics {

/// How much each value of an update counts. By default 1. One number holds for all values. A tensor has the shape of
/// the values, or of their leading dimensions (8 weights for values of shape [8, 3]: one for each row). Weights are
/// finite and not below 0. A value of weight 0 does not count, whatever it is: so the mean loss of an empty part, which
/// is NaN, may be given with the part's size as its weight.
class Weights {
 public:
  Weights() = default;
  Weights(std::nullopt_t) {}                            // NOLINT(google-explicit-constructor)
  Weights(at::Tensor each) : each_(std::move(each)) {}  // NOLINT(google-explicit-constructor)
  Weights(const std::optional<at::Tensor>& each)
      : each_(each.value_or(at::Tensor())) {}  // NOLINT(google-explicit-constructor)
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  Weights(Number all) : all_(static_cast<double>(all)) {}  // NOLINT(google-explicit-constructor)

  /// Undefined where one number holds for all.
  const at::Tensor& each() const { return each_; }
  double all() const { return all_; }

 private:
  at::Tensor each_;
  double all_ = 1;
};

/// The base of the means below. A handle. Its copies mean the same metric, which may outlive its strategy. A
/// default-constructed handle is empty: until it is assigned, every use of it is a UsageError (LS-EMPTY-HANDLE).
///
/// Each metric has an update(ctx, ...). It is called inside a step of run() or evaluate(), on its replica's thread, any
/// number of times; a replica may also not call it at all. It does not meet and keeps no graph. A wrong argument is a
/// UsageError that names the metric and the replica, and nothing is added. The other members are called outside of
/// steps. In a scheduled step (WorkerContext) it is called before ctx.push(): what it adds travels with the push, and
/// counts with the step or not at all; in Coordinator::evaluate it counts with the evaluation.
///
/// The state is one on-read variable with the metric's name: float64 [2], the sum of weighted values and the sum of
/// weights. With V replicas, the result has the same bits on any lanes. Counts are exact (up to 2^53). Where values are
/// not whole numbers, another V adds them in another order, in float64.
class Metric {
 public:
  const std::string& name() const;
  /// The sum of the weights so far, over all replicas: without weights, how many values there were.
  double count() const;
  /// Sets the sum of values and the sum of weights to 0.
  void reset() const;

 protected:
  /// An empty handle. `kind` is a string literal, such as "metrics::Mean".
  explicit Metric(const char* kind) : kind_(kind) {}
  /// A UsageError where a living variable has the name; `place` is the user's line.
  Metric(Strategy& strategy, const char* kind, std::string name, const std::source_location& place);
  const char* kind() const { return kind_; }
  /// `values` of any shape and real dtype.
  void add(const internal::MetricContext& ctx, const at::Tensor& values, const Weights& weights) const;
  /// NaN where the sum of weights is 0.
  double mean() const;

 private:
  const Variable& sums() const;

  const char* kind_;
  std::optional<Variable> sums_;
};

/// The weighted mean of values.
class Mean : public Metric {
 public:
  Mean();
  explicit Mean(Strategy& strategy, std::string name = "mean",
                const std::source_location& place = std::source_location::current());
  /// `values` of any shape and real dtype. Give either the loss of each sample, or the mean over the part (before
  /// scale_loss) with the part's size as its weight.
  void update(const internal::MetricContext& ctx, const at::Tensor& values, const Weights& weights = {}) const;
  /// NaN where nothing counted, as LibTorch's mean of nothing is.
  double result() const { return mean(); }
};

/// The share of right predictions.
class Accuracy : public Metric {
 public:
  Accuracy();
  explicit Accuracy(Strategy& strategy, std::string name = "accuracy",
                    const std::source_location& place = std::source_location::current());
  /// `targets`: class numbers, of an integer dtype; a target of -100 does not count (cross_entropy's ignore_index).
  /// `predictions`: logits as cross_entropy takes them, floating-point with one more dimension, the classes, as
  /// dimension 1 (targets [8] and logits [8, 10], targets [8, 5] and logits [8, 10, 5]); the largest, or the first of
  /// the largest, is the prediction. Or predictions, of the targets' shape and an integer or bool dtype.
  /// `weights`, if any, are for the targets.
  void update(const internal::MetricContext& ctx, const at::Tensor& predictions, const at::Tensor& targets,
              const Weights& weights = {}) const;
  /// Between 0 and 1; NaN where nothing counted.
  double result() const { return mean(); }
};

/// The share of targets that are among the k largest logits. Logits that equal the k-th largest are all among them.
class TopKAccuracy : public Metric {
 public:
  TopKAccuracy();
  TopKAccuracy(Strategy& strategy, std::string name, int64_t k,
               const std::source_location& place = std::source_location::current());
  /// Arguments as Accuracy's, with logits of at least k classes. NaN counts as the largest logit, and is never right.
  void update(const internal::MetricContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
              const Weights& weights = {}) const;
  /// Between 0 and 1; NaN where nothing counted.
  double result() const { return mean(); }

 private:
  int64_t k_ = 1;
};

/// The mean over all elements of (prediction - target) squared, computed in float64.
class MeanSquaredError : public Metric {
 public:
  MeanSquaredError();
  explicit MeanSquaredError(Strategy& strategy, std::string name = "mean_squared_error",
                            const std::source_location& place = std::source_location::current());
  /// Both tensors have one shape, as nothing is broadcast, and any real dtypes.
  void update(const internal::MetricContext& ctx, const at::Tensor& predictions, const at::Tensor& targets,
              const Weights& weights = {}) const;
  /// NaN where nothing counted.
  double result() const { return mean(); }
};

/// e to the power of the mean negative log likelihood: among how many equally likely tokens the model chooses; 1 at
/// best.
class Perplexity : public Metric {
 public:
  Perplexity();
  explicit Perplexity(Strategy& strategy, std::string name = "perplexity",
                      const std::source_location& place = std::source_location::current());
  /// Logits and targets as Accuracy's.
  void update(const internal::MetricContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
              const Weights& weights = {}) const;
  /// From a loss that is already computed: `nll` are negative log likelihoods to the base e, either each token's, or
  /// their mean with the number of tokens as `weight`.
  void update(const internal::MetricContext& ctx, const at::Tensor& nll, double weight = 1) const;
  /// NaN where nothing counted.
  double result() const;
};

/// Samples per second. A handle like the others. The variable (int64, with the metric's name) counts samples only; the
/// time is that of this process, and is not part of the saved state.
class Throughput {
 public:
  Throughput() = default;
  /// Starts the clock.
  explicit Throughput(Strategy& strategy, std::string name = "throughput",
                      const std::source_location& place = std::source_location::current());
  const std::string& name() const;
  /// Adds this replica's samples, tokens or whatever is counted: a whole number, not below 0. Inside a step.
  void update(const internal::MetricContext& ctx, Count samples) const;
  /// count() / seconds(); NaN before the first update. After a restore of the variable call reset(): the clock did not
  /// see those samples.
  double result() const;
  /// Over all replicas.
  int64_t count() const;
  /// From the start of the clock to the latest update of a replica of this process.
  double seconds() const;
  /// Sets the count to 0 and starts the clock again.
  void reset() const;

 private:
  struct Clock;
  const Variable& samples() const;

  std::optional<Variable> samples_;
  std::shared_ptr<Clock> clock_;
};

}  // namespace metrics
}  // namespace lockstep
