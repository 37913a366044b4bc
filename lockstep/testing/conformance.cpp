#include "lockstep/testing/conformance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "lockstep/testing/conformance_checks.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

namespace internal {

namespace {

/// Few elements on one line.
std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  constexpr int64_t kShown = 8;
  std::vector<std::string> elements;
  const at::Tensor flat = tensor.detach().reshape({-1}).cpu();
  for (int64_t i = 0; i < std::min(flat.numel(), kShown); ++i) {
    const c10::Scalar element = flat[i].item();
    elements.push_back(element.isFloatingPoint() ? fmt::format("{:.9g}", element.toDouble())
                                                 : fmt::format("{}", element.toLong()));
  }
  if (flat.numel() > kShown) elements.emplace_back("...");
  return fmt::format("{} [{}] {{{}}}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     fmt::join(elements, ", "));
}

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

/// Whether all elements are equal, or apart by a share of their size.
bool all_close(const at::Tensor& a, const at::Tensor& b, double share) {
  return alike(a, b) && at::allclose(a.to(at::kDouble), b.to(at::kDouble), share, 0, true);
}

double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16: return 0x1p-7;
    case at::kHalf: return 0x1p-10;
    case at::kFloat: return 0x1p-23;
    case at::kDouble: return 0x1p-52;
    default: return 0;
  }
}

void expect_that(bool holds, std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  if (!holds) throw Finding(fmt::format("{} is {}, expected {}", what, text_of(found), text_of(expected)));
}

}  // namespace

std::string Shape::text(int on_lanes) const {
  return fmt::format("{} replica{} on {} lane{}", replicas, replicas == 1 ? "" : "s", on_lanes,
                     on_lanes == 1 ? "" : "s");
}

void expect_tensor(std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  expect_that(all_close(found, expected, 0), what, found, expected);
}

void expect_close(std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  expect_that(all_close(found, expected, 2 * rounding_of(expected.scalar_type())), what, found, expected);
}

void expect_bits(std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  expect_that(alike(found, expected) && same_bits(found, expected), what, found, expected);
}

std::exception_ptr thrown_by(FunctionRef<void()> call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::exception_ptr nested_in(std::string_view what, const std::exception_ptr& found) {
  expect_error<ReplicaError>(what, "a ReplicaError of run()", found, {});
  try {
    std::rethrow_exception(found);
  } catch (const ReplicaError& error) {
    return error.nested_ptr();
  }
}

}  // namespace internal

namespace testing {

using internal::Shape;

namespace {

std::vector<Shape> shapes_of(const Conformance& conformance) {
  if (!conformance.make) throw UsageError("a Conformance has no .make", "give a function that makes a strategy");
  const auto shared = std::make_shared<const Conformance>(conformance);
  std::vector<Shape> shapes;
  for (const int64_t replicas : conformance.replicas) {
    std::optional<int> first;
    for (const int lanes : conformance.lanes) {
      if (lanes < 1 || replicas < lanes) continue;
      Shape shape{shared, replicas, lanes, first.value_or(lanes)};
      if (!shape.make(lanes)) continue;
      first = shape.first_lanes;
      shapes.push_back(std::move(shape));
    }
  }
  if (shapes.empty()) {
    throw UsageError("a Conformance has no shape to look at",
                     "give .replicas and .lanes for which .make gives a strategy");
  }
  return shapes;
}

[[noreturn]] void throw_found(const std::string& who, const std::exception_ptr& found, const char* look_at) {
  try {
    std::rethrow_exception(found);
  } catch (const internal::Finding& finding) {
    throw DivergenceError(fmt::format("{}: {}", who, finding.what()), look_at);
  } catch (...) {
    throw DivergenceError(fmt::format("{}: the check was stopped by '{}'", who, message_of(found)), look_at);
  }
}

void run_check(const Shape& shape, const internal::StrategyCheck& check) {
  const auto strategy = shape.make(shape.lanes);
  const auto found = internal::thrown_by([&] { check.run(*strategy); });
  if (found) throw_found(fmt::format("{} of {}", strategy->name(), shape.text(shape.lanes)), found, check.look_at);
}

void run_check(const Shape& shape, const internal::ShapeCheck& check) {
  const auto found = internal::thrown_by([&] { check.run(shape); });
  if (found) throw_found(shape.text(shape.lanes), found, check.look_at);
}

void expect_shape(const Shape& shape) {
  const auto strategy = shape.make(shape.lanes);
  const std::string who = strategy->name() + " of " + shape.text(shape.lanes);
  const auto found = internal::thrown_by([&] {
    internal::expect_equal("num_replicas()", strategy->num_replicas(), shape.replicas);
    internal::expect_equal("the number of devices()", static_cast<int>(strategy->devices().size()), shape.lanes);
    internal::expect_equal("seed()", strategy->seed(), Shape::kSeed);
    internal::expect_equal("step() of a new strategy", strategy->step(), int64_t{0});
    internal::expect(strategy->describe().find(strategy->name()) != std::string::npos, "describe() has no name in it");
  });
  if (found) throw_found(who, found, "make in .make what it was asked for; look at the strategy's Topology");
}

template <class Checks>
void append(std::vector<ConformanceCheck>& all, const Shape& shape, const Checks& checks) {
  for (const auto& check : checks) all.push_back({check.name, [shape, check] { run_check(shape, check); }});
}

}  // namespace

std::vector<ConformanceCheck> conformance_checks(const Conformance& conformance) {
  std::vector<ConformanceCheck> all;
  for (const Shape& shape : shapes_of(conformance)) {
    std::vector<ConformanceCheck> checks{{"HasTheShapeThatWasAskedFor", [shape] { expect_shape(shape); }}};
    append(checks, shape, internal::collectives_checks());
    append(checks, shape, internal::matrix_checks());
    append(checks, shape, internal::creation_checks());
    append(checks, shape, internal::contexts_checks());
    append(checks, shape, internal::errors_checks());
    append(checks, shape, internal::training_checks());
    if (conformance.one_gradient_rule) append(checks, shape, internal::one_device_checks());
    std::string suffix = "_" + shape.text(shape.lanes);
    for (auto word = suffix.find(' '); word != std::string::npos; word = suffix.find(' ')) {
      suffix.erase(word, 1);
      suffix[word] = static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[word])));
    }
    for (ConformanceCheck& check : checks) all.push_back({check.name + suffix, std::move(check.run)});
  }
  return all;
}

void expect_conformance(const Conformance& conformance) {
  const std::vector<ConformanceCheck> checks = conformance_checks(conformance);
  std::string failed;
  int count = 0;
  for (const ConformanceCheck& check : checks) {
    const auto found = internal::thrown_by([&] { check.run(); });
    if (!found) continue;
    ++count;
    failed += fmt::format("\n  {}: {}", check.name, message_of(found));
  }
  if (count == 0) return;
  throw DivergenceError(fmt::format("{} of {} checks of the conformance suite failed{}", count, checks.size(), failed),
                        "\n  begin with the first: others may follow from it");
}

}  // namespace testing

}  // namespace lockstep
