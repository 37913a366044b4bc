#include "lockstep/testing/difference.h"
#include "lockstep/testing/rounding.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace lockstep::internal::inline testing {

namespace {

using Allowed = std::optional<double>;  // the largest distance between elements; none: the bits must be equal

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

/// Real numbers, wide enough to subtract.
at::Tensor wide(const at::Tensor& value) {
  return (value.is_complex() ? at::view_as_real(value) : value).to(at::kDouble);
}

/// Integers that are equal where the elements' bits are.
at::Tensor bits_of(const at::Tensor& value) {
  const at::Tensor real = (value.is_complex() ? at::view_as_real(value) : value).contiguous();
  switch (real.element_size()) {
    case 1: return real.view(at::kByte);
    case 2: return real.view(at::kShort);
    case 4: return real.view(at::kInt);
    default: return real.view(at::kLong);
  }
}

/// The largest finite element: an infinity must not make the tolerance of the others infinite.
double largest(const at::Tensor& value) {
  if (value.numel() == 0) return 0;
  return value.abs().masked_fill(value.isfinite().logical_not(), 0).max().item<double>();
}

/// Says where two tensors of one shape and dtype differ most; nothing where they differ by no more than `allowed`.
std::optional<std::string> apart(const at::Tensor& expected, const at::Tensor& actual, Allowed allowed) {
  const at::Tensor a = wide(expected);
  const at::Tensor b = wide(actual);
  at::Tensor distance = a.sub(b).abs();
  at::Tensor wrong;
  if (allowed) {
    const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));  // infinities subtract to NaN
    wrong = distance.le(*allowed).logical_or(same).logical_not();
  } else {
    wrong = bits_of(expected).ne(bits_of(actual));
  }
  const int64_t count = wrong.sum().item<int64_t>();
  if (count == 0) return std::nullopt;
  distance = distance.masked_fill(distance.isnan(), std::numeric_limits<double>::infinity());
  int64_t flat = distance.masked_fill(wrong.logical_not(), -1).argmax().item<int64_t>();
  const auto at = [&](const at::Tensor& tensor) {
    const double value = tensor.reshape({-1})[flat].item<double>();
    return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;  // a NaN without sign
  };
  const double left = at(a);
  const double right = at(b);
  std::vector<int64_t> index;
  for (int64_t d = a.dim() - 1, rest = flat; d >= 0; rest /= a.size(d), --d) index.push_back(rest % a.size(d));
  std::reverse(index.begin(), index.end());
  const int digits = expected.scalar_type() == at::kFloat ? 9 : 17;
  return fmt::format("element [{}] is {:.{}g} and {:.{}g}, distance {:.3g}, {}; {} of {} elements differ",
                     fmt::join(index, ", "), left, digits, right, digits, std::abs(left - right),
                     allowed ? fmt::format("where at most {:.3g} is rounding", *allowed) : "and bits must be equal",
                     count, a.numel());
}

/// One tensor of a moment that is compared by name: a variable's value, or one of its components.
struct Compared {
  const RecordedVariable* variable;
  std::string name;
  at::Tensor value;
};

std::vector<Compared> compared_in(const Moment& moment, bool components) {
  std::vector<Compared> result;
  for (const RecordedVariable& variable : moment.variables) {
    const std::string name = fmt::format("variable '{}'", variable.name);
    if (components && !variable.on_write) {
      for (std::size_t r = 0; r < variable.components.size(); ++r) {
        result.push_back({&variable, fmt::format("replica {}'s component of {}", r, name), variable.components[r]});
      }
    } else if (variable.value.defined()) {
      result.push_back({&variable, name, variable.value});
    }
  }
  return result;
}

/// How variables moved since the start of a recording.
class Movement {
 public:
  Movement(const Recording& recording, const Moment& now) {
    for (const RecordedVariable& variable : recording.moments.front().variables) start_[variable.name] = variable.value;
    for (const RecordedVariable& variable : now.variables) {
      if (!has_kind(variable)) continue;
      double& farthest = of_kind_[kind_of(variable.name)];
      farthest = std::max(farthest, largest(of(variable)));
    }
  }
  at::Tensor of(const RecordedVariable& variable) const {
    const auto start = start_.find(variable.name);
    const bool known = start != start_.end() && start->second.defined() &&
                       start->second.sizes() == variable.value.sizes() &&
                       start->second.scalar_type() == variable.value.scalar_type();
    return known ? wide(variable.value).sub(wide(start->second)) : wide(variable.value);
  }
  /// The farthest that any variable of the same kind has moved. Parameters are one kind, and slots of one name are one.
  double of_kind(const RecordedVariable& variable) const {
    return has_kind(variable) ? of_kind_.at(kind_of(variable.name)) : 0;
  }

 private:
  static bool has_kind(const RecordedVariable& variable) {
    return variable.on_write && variable.aggregation == VariableAggregation::kNone;
  }
  static std::string kind_of(const std::string& name) {
    const auto slash = name.rfind('/');
    return slash == std::string::npos ? "" : name.substr(slash);
  }
  std::map<std::string, at::Tensor> start_;
  std::map<std::string, double> of_kind_;
};

Allowed allowed_for(const RecordedVariable& variable, const Movement& movement, int64_t steps, double tolerance) {
  constexpr double kNoise = 64;  // roundings, for gradients whose terms cancel; see CompareOptions::tolerance
  const double rounding = rounding_of(variable.value.scalar_type());
  if (rounding == 0) return 0;  // integers
  return tolerance * largest(movement.of(variable)) +
         rounding * (static_cast<double>(steps) * largest(wide(variable.value)) + kNoise * movement.of_kind(variable));
}

bool is_batch_norm(const std::string& name) {
  return name.ends_with(".running_mean") || name.ends_with(".running_var");
}

std::string when(int64_t steps) {
  return steps == 0 ? "before the first step" : fmt::format("after step {}", steps - 1);
}

/// What differs at one moment.
class Comparison {
 public:
  Comparison(const Recording& expected, const Recording& actual, std::size_t moment, std::optional<double> tolerance)
      : expected_(expected),
        actual_(actual),
        a_(expected.moments[moment]),
        b_(actual.moments[moment]),
        tolerance_(tolerance) {}

  std::optional<Difference> first() const {
    if (a_.steps != b_.steps) {
      return plain(fmt::format("{} did {} steps when {} had done {}", expected_.who, a_.steps, actual_.who, b_.steps));
    }
    const std::vector<Compared> left = compared_in(a_, !tolerance_);
    const std::vector<Compared> right = compared_in(b_, !tolerance_);
    const Movement movement(expected_, a_);
    std::optional<Difference> first;
    int64_t others = 0;
    for (const Compared& one : left) {
      const auto other = std::find_if(right.begin(), right.end(), [&](const auto& r) { return r.name == one.name; });
      if (other == right.end()) return missing(one, expected_, actual_);
      const std::optional<std::string> text = differing(one, *other, movement);
      if (!text) continue;
      if (first) {
        ++others;
        continue;
      }
      first = Difference{.fact = fmt::format("{}, {} differs between {} and {}: {}", when(a_.steps), one.name,
                                             expected_.who, actual_.who, *text),
                         .steps = a_.steps,
                         .variable = *one.variable,
                         .movement = ratio(one, *other, movement)};
    }
    for (const Compared& one : right) {
      const bool known = std::any_of(left.begin(), left.end(), [&](const auto& l) { return l.name == one.name; });
      if (!known) return missing(one, actual_, expected_);
    }
    if (!first) return std::nullopt;
    if (others > 0) first->fact += fmt::format(", and {} other variable{}", others, others == 1 ? "" : "s");
    first->batch_norm =
        std::any_of(a_.variables.begin(), a_.variables.end(), [](const auto& v) { return is_batch_norm(v.name); });
    return first;
  }

 private:
  std::optional<std::string> differing(const Compared& one, const Compared& other, const Movement& movement) const {
    if (one.value.sizes() != other.value.sizes() || one.value.scalar_type() != other.value.scalar_type()) {
      return fmt::format("{} and {}", shape_of(one.value), shape_of(other.value));
    }
    if (!tolerance_) return apart(one.value, other.value, std::nullopt);
    return apart(one.value, other.value, allowed_for(*one.variable, movement, a_.steps, *tolerance_));
  }

  double ratio(const Compared& one, const Compared& other, const Movement& movement) const {
    if (!tolerance_ || one.value.sizes() != other.value.sizes()) return 1;
    const double expected = movement.of(*one.variable).norm().item<double>();
    return Movement(actual_, b_).of(*other.variable).norm().item<double>() / expected;
  }

  Difference missing(const Compared& one, const Recording& there, const Recording& not_there) const {
    return plain(
        fmt::format("{}, {} is there on {} and not on {}", when(a_.steps), one.name, there.who, not_there.who));
  }

  Difference plain(std::string fact) const { return {.fact = std::move(fact), .steps = a_.steps, .variable = {}}; }

  const Recording& expected_;
  const Recording& actual_;
  const Moment& a_;
  const Moment& b_;
  const std::optional<double> tolerance_;
};

}  // namespace

std::optional<Difference> first_difference(const Recording& expected, const Recording& actual,
                                           std::optional<double> tolerance) {
  const std::size_t count = std::min(expected.moments.size(), actual.moments.size());
  for (std::size_t moment = 0; moment < count; ++moment) {
    if (auto difference = Comparison(expected, actual, moment, tolerance).first()) return difference;
  }
  if (expected.moments.size() == actual.moments.size()) return std::nullopt;
  return Difference{.fact = fmt::format("{} was observed {} times and {} {} times", expected.who,
                                        expected.moments.size(), actual.who, actual.moments.size()),
                    .steps = expected.moments[count - 1].steps,
                    .variable = {}};
}

std::string what_to_check(const Difference& difference, int64_t replicas) {
  const RecordedVariable& variable = difference.variable;
  const auto number = static_cast<double>(replicas);
  constexpr const char* kBatchNorm =
      "compare a model with BatchNorm by expect_same_on_any_lanes: BatchNorm sees only its replica's part of the batch";
  if (variable.name.empty()) return "make the same variables and steps for any number of replicas";
  if (difference.steps == 0) {
    return "use only LibTorch's random operators and fixed values for initial values, whatever the number of replicas";
  }
  if (!variable.on_write) {
    if (is_batch_norm(variable.name)) return kBatchNorm;
    return "check what each replica gives the variable: its aggregate must be the whole batch's, so a mean over a part "
           "counts with the part's size";
  }
  if (variable.aggregation != VariableAggregation::kNone) {
    return "check what each replica gives to assign: its sum, mean or first must be that of the whole batch, and parts "
           "are uneven; sum with ctx.all_reduce and divide by ctx.global_batch_size()";
  }
  if (replicas > 1 && std::abs(difference.movement - number) <= number / 4) {
    return fmt::format("check that the loss goes through ctx.scale_loss(): the variable moved {:.3g} times as far",
                       difference.movement);
  }
  if (difference.batch_norm) return kBatchNorm;
  return "check that the loss is a mean that goes through ctx.scale_loss(), and that nothing in the step looks across "
         "samples or draws random numbers";
}

}  // namespace lockstep::internal::testing
