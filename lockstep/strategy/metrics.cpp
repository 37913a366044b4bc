// All metrics but Throughput are weighted means. They differ in how they compute values from their arguments.
#include "lockstep/strategy/metrics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <source_location>
#include <span>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::metrics {

namespace {

constexpr int64_t kIgnored = -100;  // cross_entropy's ignore_index

Variable make_state(Strategy& strategy, std::string name, const at::Tensor& zeros, const std::source_location& place) {
  return strategy.make_variable(zeros,
                                {.name = std::move(name),
                                 .trainable = false,
                                 .synchronization = VariableSynchronization::kOnRead,
                                 .aggregation = VariableAggregation::kSum},
                                place);
}

/// The scope of a call outside of steps. Inside a step it throws a UsageError that names the metric, not its variable.
internal::CallScope outside(const Variable& state, const char* call) {
  return internal::CallScope(*state.state().group(), call, "update it, and read or reset it after run() returned",
                             internal::Workers::kAll, state.name());
}

/// The variable of a handle. Throws a UsageError where the handle is empty.
const Variable& state_of(const std::optional<Variable>& state, const char* kind) {
  if (state) return *state;
  throw UsageError("LS-EMPTY-HANDLE", fmt::format("a {} that was default-constructed was used", kind),
                   "assign one that was made with a strategy first");
}

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  if (tensor.is_nested()) return "a nested tensor";
  return fmt::format("{}{}{}", tensor.layout() == at::kStrided ? "" : "sparse ", internal::shape_text(tensor),
                     tensor.device().is_cpu() ? "" : " on " + tensor.device().str());
}

bool is_real(at::ScalarType type) { return at::isFloatingType(type) || at::isIntegralType(type, /*includeBool=*/true); }

/// The same logits in a dtype that LibTorch computes with; no value changes.
at::Tensor wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits.detach() : logits.detach().to(at::kFloat);
}

/// Checks the arguments of one update of one metric by one replica; its errors name both.
class Update {
 public:
  Update(const char* kind, const std::string& name, const ReplicaContext& ctx) : kind_(kind), name_(name), ctx_(ctx) {
    internal::ContextAccess::check_is_current(ctx, kind);
  }

  [[noreturn]] void refuse(ErrorCode code, const std::string& fact, const std::string& remedy) const {
    throw UsageError(
        code, fmt::format("{} '{}' on replica {} was given {}", kind_, name_, ctx_.replica_id().value(), fact), remedy);
  }

  /// Refuses a tensor that is not dense or not in the host's memory; any dtype passes.
  void require_operand(const at::Tensor& tensor, const char* what) const {
    const std::string fact = fmt::format("{} as {}", what, described(tensor));
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) {
      refuse("LS-NOT-DENSE", fact, "give a dense tensor of real numbers");
    }
    if (!tensor.device().is_cpu()) refuse("LS-NOT-HOST", fact, "give a tensor in the host's memory");
  }
  void require_real(const at::Tensor& tensor, const char* what) const {
    require_operand(tensor, what);
    if (is_real(tensor.scalar_type())) return;
    refuse("LS-DTYPE", fmt::format("{} as {}", what, described(tensor)), "give a dense tensor of real numbers");
  }

  /// Weights for values of shape `sizes`, as float64 of that shape.
  at::Tensor expanded(const Weights& weights, c10::IntArrayRef sizes) const {
    if (!weights.each().defined()) {
      require_weight(weights.all());
      return at::full(sizes, weights.all(), at::kDouble);
    }
    const at::Tensor& each = weights.each();
    require_real(each, "weights");
    const auto dimensions = static_cast<std::size_t>(each.dim());
    if (dimensions > sizes.size() || each.sizes() != sizes.slice(0, dimensions)) {
      refuse("LS-SHAPE",
             fmt::format("weights of shape [{}] for values of shape [{}]", fmt::join(each.sizes(), ", "),
                         fmt::join(sizes, ", ")),
             "give a weight for each value, or for each index of their first dimensions");
    }
    const at::Tensor wide = each.detach().to(at::kDouble);
    if (!wide.ge(0).logical_and(wide.lt(std::numeric_limits<double>::infinity())).all().item<bool>()) {
      refuse("LS-WEIGHT", "weights below 0 or not finite", "give finite weights from 0");
    }
    std::vector<int64_t> shape = each.sizes().vec();
    shape.resize(sizes.size(), 1);
    return wide.reshape(shape).expand(sizes);
  }

  void require_weight(double weight) const {
    if (weight >= 0 && std::isfinite(weight)) return;
    refuse("LS-WEIGHT", fmt::format("weight {}", weight), "give a finite weight from 0");
  }

  /// Class numbers as int64.
  at::Tensor classes_of(const at::Tensor& targets) const {
    require_operand(targets, "targets");
    if (!at::isIntegralType(targets.scalar_type(), /*includeBool=*/true)) {
      refuse("LS-DTYPE", fmt::format("targets as {}", described(targets)),
             "give class numbers of an integer dtype, without one-hot encoding");
    }
    return targets.detach().to(at::kLong);
  }

  /// Weights of targets; a target that is ignored has weight 0.
  at::Tensor counted(const at::Tensor& targets, const Weights& weights) const {
    return expanded(weights, targets.sizes()).mul(targets.ne(kIgnored));
  }

  /// The dimension of `logits` that has the classes, as in cross_entropy: 1, or 0 where there is only one dimension.
  /// Refuses a target that is neither one of the classes nor ignored.
  int64_t class_dimension(const at::Tensor& logits, const at::Tensor& targets) const {
    const int64_t dimension = logits.dim() == 1 ? 0 : 1;
    std::vector<int64_t> rest = logits.sizes().vec();
    if (logits.dim() > 0) rest.erase(rest.begin() + dimension);
    if (logits.dim() == 0 || !at::isFloatingType(logits.scalar_type()) || targets.sizes() != rest ||
        logits.size(dimension) == 0) {
      refuse("LS-SHAPE",
             fmt::format("logits as {} for targets of shape [{}]", described(logits), fmt::join(targets.sizes(), ", ")),
             "give logits as to cross_entropy: floating-point, of the targets' shape with the classes as dimension 1");
    }
    const int64_t classes = logits.size(dimension);
    const at::Tensor wrong = targets.lt(0).logical_or(targets.ge(classes)).logical_and(targets.ne(kIgnored));
    if (wrong.any().item<bool>()) {
      refuse(
          "LS-TARGET",
          fmt::format("target {} for logits of {} classes", targets.masked_select(wrong)[0].item<int64_t>(), classes),
          fmt::format("number classes from 0 to {}; a target of {} is left out", classes - 1, kIgnored));
    }
    return dimension;
  }

 private:
  const char* const kind_;
  const std::string& name_;
  const ReplicaContext& ctx_;
};

/// The logit of each target's class; an arbitrary value where the target is ignored.
at::Tensor at_targets(const at::Tensor& logits, const at::Tensor& targets, int64_t dimension) {
  return logits.gather(dimension, targets.clamp_min(0).unsqueeze(dimension));
}

}  // namespace

Metric::Metric(Strategy& strategy, const char* kind, std::string name, const std::source_location& place)
    : kind_(kind), sums_(make_state(strategy, std::move(name), at::zeros({2}, at::kDouble), place)) {}

const Variable& Metric::sums() const { return state_of(sums_, kind_); }
const std::string& Metric::name() const { return sums().name(); }

void Metric::add(const ReplicaContext& ctx, const at::Tensor& values, const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const Update update(kind_, name(), ctx);
  update.require_real(values, "values");
  const at::Tensor numbers = values.detach().to(at::kDouble);
  at::Tensor sum;
  at::Tensor count;
  if (weights.each().defined()) {
    const at::Tensor weight = update.expanded(weights, numbers.sizes());
    sum = numbers.mul(weight).masked_fill(weight.eq(0), 0).sum();
    count = weight.sum();
  } else {
    update.require_weight(weights.all());
    if (weights.all() == 0) return;
    sum = numbers.sum().mul(weights.all());
    count = at::full({}, weights.all() * static_cast<double>(numbers.numel()), numbers.options());
  }
  sums().assign_add(ctx, at::stack({sum, count}));
}

double Metric::mean() const {
  const auto call = outside(sums(), kind_);
  const at::Tensor both = sums().read();
  const std::span<const double> values = internal::host_numbers<double>(both);
  return values[1] == 0 ? std::numeric_limits<double>::quiet_NaN() : values[0] / values[1];
}

double Metric::count() const {
  const auto call = outside(sums(), kind_);
  return sums().read()[1].item<double>();
}

void Metric::reset() const {
  const auto call = outside(sums(), kind_);
  sums().assign(at::zeros({2}, at::kDouble));
}

Mean::Mean() : Metric("metrics::Mean") {}
Mean::Mean(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Mean", std::move(name), place) {}

void Mean::update(const ReplicaContext& ctx, const at::Tensor& values, const Weights& weights) const {
  add(ctx, values, weights);
}

Accuracy::Accuracy() : Metric("metrics::Accuracy") {}
Accuracy::Accuracy(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Accuracy", std::move(name), place) {}

void Accuracy::update(const ReplicaContext& ctx, const at::Tensor& predictions, const at::Tensor& targets,
                      const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const Update update(kind(), name(), ctx);
  update.require_real(predictions, "predictions");
  const at::Tensor wanted = update.classes_of(targets);
  at::Tensor predicted = predictions.detach();
  if (at::isFloatingType(predicted.scalar_type())) {
    predicted = wide(predicted).argmax(update.class_dimension(predicted, wanted));
  } else if (predicted.sizes() != wanted.sizes()) {
    update.refuse("LS-SHAPE",
                  fmt::format("predictions as {} for targets of shape [{}]", described(predicted),
                              fmt::join(wanted.sizes(), ", ")),
                  "give a prediction for each target, or floating-point logits");
  }
  add(ctx, predicted.eq(wanted), update.counted(wanted, weights));
}

TopKAccuracy::TopKAccuracy() : Metric("metrics::TopKAccuracy") {}
TopKAccuracy::TopKAccuracy(Strategy& strategy, std::string name, int64_t k, const std::source_location& place)
    : Metric(strategy, "metrics::TopKAccuracy", std::move(name), place), k_(k) {
  if (k < 1) {
    throw UsageError("LS-OPTION", fmt::format("metrics::TopKAccuracy '{}' was asked for the top {}", this->name(), k),
                     "choose k from 1");
  }
}

void TopKAccuracy::update(const ReplicaContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
                          const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const Update update(kind(), name(), ctx);
  update.require_real(logits, "logits");
  const at::Tensor wanted = update.classes_of(targets);
  const at::Tensor values = wide(logits);
  const int64_t dimension = update.class_dimension(values, wanted);
  if (values.size(dimension) < k_) {
    update.refuse("LS-SHAPE", fmt::format("logits of {} classes for the top {}", values.size(dimension), k_),
                  "choose k up to the number of classes");
  }
  // topk is not used, as it chooses freely among equal logits. In this form NaN is above everything, itself included.
  const at::Tensor above = values.le(at_targets(values, wanted, dimension)).logical_not().sum(dimension);
  add(ctx, above.lt(k_), update.counted(wanted, weights));
}

MeanSquaredError::MeanSquaredError() : Metric("metrics::MeanSquaredError") {}
MeanSquaredError::MeanSquaredError(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::MeanSquaredError", std::move(name), place) {}

void MeanSquaredError::update(const ReplicaContext& ctx, const at::Tensor& predictions, const at::Tensor& targets,
                              const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const Update update(kind(), name(), ctx);
  update.require_real(predictions, "predictions");
  update.require_real(targets, "targets");
  if (predictions.sizes() != targets.sizes()) {
    update.refuse("LS-SHAPE",
                  fmt::format("predictions of shape [{}] for targets of shape [{}]",
                              fmt::join(predictions.sizes(), ", "), fmt::join(targets.sizes(), ", ")),
                  "give both in one shape, with reshape where a dimension of size 1 is too many");
  }
  add(ctx, predictions.detach().to(at::kDouble).sub(targets.detach().to(at::kDouble)).square(), weights);
}

Perplexity::Perplexity() : Metric("metrics::Perplexity") {}
Perplexity::Perplexity(Strategy& strategy, std::string name, const std::source_location& place)
    : Metric(strategy, "metrics::Perplexity", std::move(name), place) {}

void Perplexity::update(const ReplicaContext& ctx, const at::Tensor& logits, const at::Tensor& targets,
                        const Weights& weights) const {
  const at::NoGradGuard no_grad;
  const Update update(kind(), name(), ctx);
  update.require_real(logits, "logits");
  const at::Tensor wanted = update.classes_of(targets);
  const int64_t dimension = update.class_dimension(logits, wanted);
  const at::Tensor likelihoods = at::log_softmax(wide(logits), dimension);
  add(ctx, at_targets(likelihoods, wanted, dimension).squeeze(dimension).neg(), update.counted(wanted, weights));
}

void Perplexity::update(const ReplicaContext& ctx, const at::Tensor& nll, double weight) const {
  add(ctx, nll, weight);
}

double Perplexity::result() const { return std::exp(mean()); }

struct Throughput::Clock {
  using Time = std::chrono::steady_clock::time_point;
  Time start = std::chrono::steady_clock::now();
  std::atomic<Time> latest{start};  // written by replicas; of two that write at about the same time, any may be last
};

Throughput::Throughput(Strategy& strategy, std::string name, const std::source_location& place)
    : samples_(make_state(strategy, std::move(name), at::zeros({}, at::kLong), place)),
      clock_(std::make_shared<Clock>()) {}

const Variable& Throughput::samples() const { return state_of(samples_, "metrics::Throughput"); }
const std::string& Throughput::name() const { return samples().name(); }

void Throughput::update(const ReplicaContext& ctx, Count samples) const {
  const Update update("metrics::Throughput", name(), ctx);
  const double value = samples.value();
  if (!(value >= 0 && value <= 0x1p53 && std::floor(value) == value)) {
    update.refuse("LS-COUNT", fmt::format("{} samples", value), "give a whole number from 0");
  }
  this->samples().assign_add(ctx, at::full({}, static_cast<int64_t>(value), at::kLong));
  clock_->latest.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
}

double Throughput::result() const {
  const double time = seconds();
  return time > 0 ? static_cast<double>(count()) / time : std::numeric_limits<double>::quiet_NaN();
}

int64_t Throughput::count() const {
  const auto call = outside(samples(), "metrics::Throughput");
  return samples().read().item<int64_t>();
}

double Throughput::seconds() const {
  const auto call = outside(samples(), "metrics::Throughput");
  return std::chrono::duration<double>(clock_->latest.load(std::memory_order_relaxed) - clock_->start).count();
}

void Throughput::reset() const {
  const auto call = outside(samples(), "metrics::Throughput");
  samples().assign(at::zeros({}, at::kLong));
  clock_->start = std::chrono::steady_clock::now();
  clock_->latest.store(clock_->start, std::memory_order_relaxed);
}

}  // namespace lockstep::metrics
