// All metrics but Throughput are weighted means. They differ in how they compute values from their arguments.
#include "lockstep/strategy/metrics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/metric_arguments.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

void internal::MetricContext::check_is_current(const char* call) const {
  if (replica_ != nullptr) ContextAccess::check_is_current(*replica_, call);
}

int64_t internal::MetricContext::replica() const { return replica_ != nullptr ? replica_->replica_id().value() : -1; }

void internal::MetricContext::add(const Variable& variable, const at::Tensor& value) const {
  if (replica_ != nullptr) {
    variable.assign_add(*replica_, value);
  } else {
    variable.assign_add(*worker_, value);
  }
}

}  // namespace lockstep

namespace lockstep::metrics {

namespace {

Variable make_state(Strategy& strategy, const char* kind, std::string name, const at::Tensor& zeros,
                    const std::source_location& place) {
  internal::CallScope::refuse_in_step(fmt::format("the constructor of {}", kind).c_str(),
                                      "only update() works: make metrics before run(), or when it has returned");
  return strategy.make_variable(zeros,
                                {.name = std::move(name),
                                 .trainable = false,
                                 .synchronization = VariableSynchronization::kOnRead,
                                 .aggregation = VariableAggregation::kSum},
                                place);
}

/// A call of a metric's member outside of steps. Inside a step it throws a UsageError that names that member, not those
/// of the strategy and the variable that it is made of.
class Outside {
 public:
  Outside(const Variable& state, const char* kind, const char* member)
      : name_(fmt::format("{}::{}", kind, member)),
        scope_(*state.state().group(), name_.c_str(), "only update() works: call it when run() has returned",
               internal::Workers::kAll, state.name()) {}

 private:
  const std::string name_;
  const internal::CallScope scope_;
};

/// The variable of a handle. Throws a UsageError where the handle is empty.
const Variable& state_of(const std::optional<Variable>& state, const char* kind) {
  if (state) return *state;
  throw UsageError("LS-EMPTY-HANDLE", fmt::format("a {} that was default-constructed was used", kind),
                   "assign one that was made with a strategy first");
}

/// The arguments of an update by this replica or worker, whose step runs.
internal::MetricArguments arguments(const char* kind, const std::string& name, const internal::MetricContext& ctx) {
  ctx.check_is_current(kind);
  return {kind, name, ctx.replica()};
}

}  // namespace

Metric::Metric(Strategy& strategy, const char* kind, std::string name, const std::source_location& place)
    : kind_(kind), sums_(make_state(strategy, kind, std::move(name), at::zeros({2}, at::kDouble), place)) {}

const Variable& Metric::sums() const { return state_of(sums_, kind_); }
const std::string& Metric::name() const { return sums().name(); }

void Metric::add(const internal::MetricContext& ctx, const at::Tensor& values, const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const at::Tensor both = arguments(kind_, name(), ctx).weighted_sums(values, weights);
  if (!weights.each().defined() && weights.all() == 0) return;
  ctx.add(sums(), both);
}

double Metric::mean() const {
  const Outside call(sums(), kind_, "result");
  const at::Tensor both = sums().read();
  const std::span<const double> values = internal::host_numbers<double>(both);
  return values[1] == 0 ? std::numeric_limits<double>::quiet_NaN() : values[0] / values[1];
}

double Metric::count() const {
  const Outside call(sums(), kind_, "count");
  return sums().read()[1].item<double>();
}

void Metric::reset() const {
  const Outside call(sums(), kind_, "reset");
  sums().assign(at::zeros({2}, at::kDouble));
}

Mean::Mean() : Metric("metrics::Mean") {}
Mean::Mean(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Mean", std::move(name), place) {}

void Mean::update(const internal::MetricContext& ctx, const at::Tensor& values, const Weights& weights) const {
  add(ctx, values, weights);
}

Accuracy::Accuracy() : Metric("metrics::Accuracy") {}
Accuracy::Accuracy(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Accuracy", std::move(name), place) {}

void Accuracy::update(const internal::MetricContext& ctx, const at::Tensor& predictions, const at::Tensor& targets,
                      const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const auto update = arguments(kind(), name(), ctx);
  const at::Tensor wanted = update.classes_of(targets);
  add(ctx, update.predicted_classes(predictions, wanted).eq(wanted), update.counted(wanted, weights));
}

TopKAccuracy::TopKAccuracy() : Metric("metrics::TopKAccuracy") {}
TopKAccuracy::TopKAccuracy(Strategy& strategy, std::string name, int64_t k, const std::source_location& place)
    : Metric(strategy, "metrics::TopKAccuracy", std::move(name), place), k_(k) {
  if (k < 1) {
    throw UsageError("LS-OPTION", fmt::format("metrics::TopKAccuracy '{}' was asked for the top {}", this->name(), k),
                     "choose k from 1");
  }
}

void TopKAccuracy::update(const internal::MetricContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
                          const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const auto update = arguments(kind(), name(), ctx);
  const at::Tensor wanted = update.classes_of(targets);
  add(ctx, update.are_among_top(logits, wanted, k_), update.counted(wanted, weights));
}

MeanSquaredError::MeanSquaredError() : Metric("metrics::MeanSquaredError") {}
MeanSquaredError::MeanSquaredError(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::MeanSquaredError", std::move(name), place) {}

void MeanSquaredError::update(const internal::MetricContext& ctx, const at::Tensor& predictions,
                              const at::Tensor& targets, const Weights& weights) const {
  const at::NoGradGuard no_grad;
  add(ctx, arguments(kind(), name(), ctx).differences(predictions, targets).square(), weights);
}

Perplexity::Perplexity() : Metric("metrics::Perplexity") {}
Perplexity::Perplexity(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Perplexity", std::move(name), place) {}

void Perplexity::update(const internal::MetricContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
                        const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const auto update = arguments(kind(), name(), ctx);
  const at::Tensor wanted = update.classes_of(targets);
  add(ctx, update.negative_log_likelihoods(logits, wanted), update.counted(wanted, weights));
}

void Perplexity::update(const internal::MetricContext& ctx, const at::Tensor& nll, double weight) const {
  add(ctx, nll, weight);
}

double Perplexity::result() const { return std::exp(mean()); }

struct Throughput::Clock {
  using Time = std::chrono::steady_clock::time_point;
  Time start = std::chrono::steady_clock::now();
  std::atomic<Time> latest{start};  // written by replicas; of two that write at about the same time, any may be last
};

Throughput::Throughput(Strategy& strategy, std::string name, const std::source_location& place)
    : samples_(make_state(strategy, "metrics::Throughput", std::move(name), at::zeros({}, at::kLong), place)),
      clock_(std::make_shared<Clock>()) {}

const Variable& Throughput::samples() const { return state_of(samples_, "metrics::Throughput"); }
const std::string& Throughput::name() const { return samples().name(); }

void Throughput::update(const internal::MetricContext& ctx, Count samples) const {
  const auto update = arguments("metrics::Throughput", name(), ctx);
  const double value = samples.value();
  if (!(value >= 0 && value <= 0x1p53 && std::floor(value) == value)) {
    update.refuse("LS-COUNT", fmt::format("{} samples", value), "give a whole number from 0");
  }
  ctx.add(this->samples(), at::full({}, static_cast<int64_t>(value), at::kLong));
  clock_->latest.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
}

double Throughput::result() const {
  const Outside call(samples(), "metrics::Throughput", "result");
  const double time = seconds();
  return time > 0 ? static_cast<double>(count()) / time : std::numeric_limits<double>::quiet_NaN();
}

int64_t Throughput::count() const {
  const Outside call(samples(), "metrics::Throughput", "count");
  return samples().read().item<int64_t>();
}

double Throughput::seconds() const {
  const Outside call(samples(), "metrics::Throughput", "seconds");
  return std::chrono::duration<double>(clock_->latest.load(std::memory_order_relaxed) - clock_->start).count();
}

void Throughput::reset() const {
  const Outside call(samples(), "metrics::Throughput", "reset");
  samples().assign(at::zeros({}, at::kLong));
  clock_->start = std::chrono::steady_clock::now();
  clock_->latest.store(clock_->start, std::memory_order_relaxed);
}

}  // namespace lockstep::metrics
