#include "lockstep/testing/conformance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/testing/conformance/conformance_checks.h"
#include "lockstep/testing/recording.h"
#include "lockstep/testing/rounding.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

namespace internal::inline testing {

namespace {

std::string text_of(const c10::Scalar& element) {
  if (element.isComplex()) {
    const auto value = element.toComplexDouble();
    return fmt::format("{:.9g}{:+.9g}i", value.real(), value.imag());
  }
  return element.isFloatingPoint() ? fmt::format("{:.9g}", element.toDouble()) : fmt::format("{}", element.toLong());
}

/// Up to eight elements on one line, from element `begin` on.
std::string text_of(const at::Tensor& tensor, int64_t begin) {
  if (!tensor.defined()) return "an undefined tensor";
  constexpr int64_t kShown = 8;
  std::vector<std::string> elements;
  const at::Tensor flat = tensor.detach().reshape({-1}).cpu();
  if (begin > 0) elements.push_back(fmt::format("... from element {}:", begin));
  for (int64_t i = begin; i < std::min(flat.numel(), begin + kShown); ++i) elements.push_back(text_of(flat[i].item()));
  if (flat.numel() > begin + kShown) elements.emplace_back("...");
  return fmt::format("{} [{}] {{{}}}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     fmt::join(elements, ", "));
}

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

/// In float64, with a complex number as two; int64 stays int64.
at::Tensor wide(const at::Tensor& tensor) {
  if (tensor.is_complex()) return at::view_as_real(tensor.resolve_conj()).to(at::kDouble);
  return tensor.scalar_type() == at::kLong ? tensor : tensor.to(at::kDouble);
}

/// Whether the elements differ by at most `share` of their size.
bool all_close(const at::Tensor& a, const at::Tensor& b, double share) {
  if (!alike(a, b)) return false;
  return a.scalar_type() == at::kLong ? at::equal(a, b) : at::allclose(wide(a), wide(b), share, 0, true);
}

/// The first element in which two tensors of one shape differ; 0 where that is among the eight that are shown anyway.
int64_t first_shown(const at::Tensor& a, const at::Tensor& b) {
  if (!alike(a, b) || a.numel() <= 8 || a.is_complex()) return 0;
  const at::Tensor differs = a.ne(b).logical_and(a.eq(a).logical_or(b.eq(b))).reshape({-1});
  const int64_t first = differs.to(at::kByte).argmax().item<int64_t>();
  return first < 8 ? 0 : first;
}

void expect_that(bool holds, std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  if (!holds)
    throw Finding(fmt::format("{} is {}, expected {}", what, text_of(found, first_shown(found, expected)),
                              text_of(expected, first_shown(found, expected))));
}

}  // namespace

std::string Shape::text(int on_lanes) const {
  std::string text =
      fmt::format("{} replica{} on {} lane{}", replicas, replicas == 1 ? "" : "s", on_lanes, on_lanes == 1 ? "" : "s");
  return workers == 1 ? text : text + fmt::format(" of {} workers", workers);
}

std::unique_ptr<Strategy> Shape::make(int on_lanes) const {
  if (!next_world) return conformance->make(replicas, on_lanes, kSeed);
  auto strategy = conformance->make_on_worker(next_world(), replicas, on_lanes, kSeed);
  if (strategy) return strategy;
  throw UsageError("LS-OPTION", fmt::format(".make_on_worker gave no strategy of {}", text(on_lanes)),
                   "let it give one for each shape for which .make gives one");
}

std::shared_ptr<World> Teams::next_world(int64_t worker) {
  // A worker that fails leaves its World, and the others learn of it at once. So the bound is for those that hang.
  constexpr auto kPatience = std::chrono::seconds(60);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t k = made_[static_cast<std::size_t>(worker)]++;
  const auto workers = static_cast<int64_t>(made_.size());
  if (k == teams_.size()) teams_.push_back(std::make_unique<ThreadWorkers>(workers, kPatience));
  return teams_[k]->world(worker);
}

std::vector<int64_t> local_ids(Strategy& strategy) {
  return strategy.local_results(strategy.per_replica([](ReplicaId r) { return r.value(); }));
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

std::exception_ptr nested_in(std::string_view what, const std::exception_ptr& found) {
  expect_error<ReplicaError>(what, "a ReplicaError of run()", found, {});
  try {
    std::rethrow_exception(found);
  } catch (const ReplicaError& error) {
    return error.nested_ptr();
  }
}

}  // namespace internal::testing

namespace testing {

using internal::Shape;

namespace {

std::vector<Shape> shapes_of(const Conformance& conformance) {
  if (!conformance.make)
    throw UsageError("LS-OPTION", "a Conformance has no .make", "give a function that makes a strategy");
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
  if (conformance.make_on_worker) {
    const auto on_one = conformance.process ? std::exchange(shapes, {}) : shapes;
    for (const int64_t workers : conformance.workers) {
      for (Shape shape : on_one) {
        shape.workers = workers;
        if (workers > 1 && shape.replicas >= workers * shape.lanes) shapes.push_back(std::move(shape));
      }
    }
  }
  if (shapes.empty()) {
    throw UsageError("LS-OPTION", "a Conformance has no shape to look at",
                     "give .replicas and .lanes for which .make gives a strategy");
  }
  return shapes;
}

/// The shapes of `more_replicas` that the strategy has and on which not all checks run anyway.
std::vector<Shape> more_shapes_of(const Conformance& conformance) {
  if (conformance.process) return {};
  const auto shared = std::make_shared<const Conformance>(conformance);
  const std::vector<int64_t>& whole = conformance.replicas;
  std::vector<Shape> shapes;
  for (const int64_t replicas : conformance.more_replicas) {
    if (std::find(whole.begin(), whole.end(), replicas) != whole.end()) continue;
    const auto lanes = std::find_if(conformance.lanes.begin(), conformance.lanes.end(),
                                    [&](int count) { return count >= 1 && replicas >= 1 && replicas % count == 0; });
    if (lanes == conformance.lanes.end()) continue;
    const Shape shape{shared, replicas, *lanes, *lanes};
    try {
      const auto strategy = shape.make(*lanes);
      if (strategy && strategy->num_replicas() == replicas) shapes.push_back(shape);
    } catch (const UsageError&) {  // the strategy has no such shape
    }
  }
  return shapes;
}

/// "_4ReplicasOn2Lanes"
std::string suffix_of(const Shape& shape) {
  std::string suffix = "_" + shape.text(shape.lanes);
  for (auto word = suffix.find(' '); word != std::string::npos; word = suffix.find(' ')) {
    suffix.erase(word, 1);
    suffix[word] = static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[word])));
  }
  return suffix;
}

[[noreturn]] void throw_found(const std::string& who, const std::exception_ptr& found, const char* look_at) {
  internal::throw_found("LS-NO-STRATEGY", who, found, look_at);
}

bool is_finding(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const DivergenceError& found) {
    return found.code() == "LS-NO-STRATEGY";
  } catch (...) {
    return false;
  }
}

/// Runs `run` on each worker of the shape that is in this process, at the same time. What one worker finds makes others
/// fail too: so a finding of a check is thrown rather than what else was thrown.
void on_each_worker(const Shape& shape, const std::function<void(const Shape&)>& run) {
  if (shape.workers == 1) return run(shape);
  const internal::GeneratorOfNewProcess generator;
  if (const auto& process = shape.conformance->process) {
    Shape own = shape;
    own.worker = process->index;
    own.next_world = process->next_world;
    return run(own);
  }
  const auto teams = std::make_shared<internal::Teams>(shape.workers);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(shape.workers));
  {
    std::vector<std::jthread> threads;
    for (int64_t w = 0; w < shape.workers; ++w) {
      threads.emplace_back([&, w, own = shape]() mutable {
        own.worker = w;
        own.next_world = [teams, w] { return teams->next_world(w); };
        errors[static_cast<std::size_t>(w)] = internal::thrown_by([&] { run(own); });
      });
    }
  }
  std::erase(errors, nullptr);
  if (errors.empty()) return;
  const auto first = std::find_if(errors.begin(), errors.end(), is_finding);
  std::rethrow_exception(first != errors.end() ? *first : errors.front());
}

std::string worker_of(const Shape& shape) {
  return shape.workers == 1 ? "" : fmt::format(", on worker {}", shape.worker);
}

void run_check(const Shape& whole, const internal::StrategyCheck& check) {
  on_each_worker(whole, [&](const Shape& shape) {
    const auto strategy = shape.make(shape.lanes);
    const auto found = internal::thrown_by([&] { check.run(*strategy); });
    if (!found) return;
    throw_found(fmt::format("{} of {}{}", strategy->name(), shape.text(shape.lanes), worker_of(shape)), found,
                check.look_at);
  });
}

void run_check(const Shape& whole, const internal::ShapeCheck& check) {
  on_each_worker(whole, [&](const Shape& shape) {
    const auto found = internal::thrown_by([&] { check.run(shape); });
    if (found) throw_found(shape.text(shape.lanes) + worker_of(shape), found, check.look_at);
  });
}

void expect_shape_here(const Shape& shape) {
  const auto strategy = shape.make(shape.lanes);
  const std::string who = strategy->name() + " of " + shape.text(shape.lanes);
  const auto found = internal::thrown_by([&] {
    internal::expect_equal("num_replicas()", strategy->num_replicas(), shape.replicas);
    internal::expect_equal("num_workers()", strategy->num_workers(), shape.workers);
    internal::expect_equal("worker_index()", strategy->worker_index(), shape.worker);
    internal::expect_equal("the number of devices()", static_cast<int>(strategy->devices().size()), shape.lanes);
    internal::expect_equal("seed()", strategy->seed(), Shape::kSeed);
    internal::expect_equal("step() of a new strategy", strategy->step(), int64_t{0});
    internal::expect(strategy->describe().find(strategy->name()) != std::string::npos, "describe() has no name in it");
  });
  if (found)
    throw_found(
        who, found,
        "let .make return the number of replicas and lanes that it is asked for; look at the strategy's Topology");
}

void expect_shape(const Shape& shape) { on_each_worker(shape, expect_shape_here); }

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
    append(checks, shape, internal::values_checks());
    append(checks, shape, internal::matrix_checks());
    append(checks, shape, internal::creation_checks());
    append(checks, shape, internal::contexts_checks());
    append(checks, shape, internal::errors_checks());
    append(checks, shape, internal::training_checks());
    append(checks, shape, internal::features_checks());
    if (conformance.one_gradient_rule) {
      append(checks, shape, internal::one_device_checks());
      append(checks, shape, internal::one_device_features_checks());
    }
    for (ConformanceCheck& check : checks) all.push_back({check.name + suffix_of(shape), std::move(check.run)});
  }
  for (const Shape& shape : more_shapes_of(conformance)) {
    std::vector<ConformanceCheck> checks;
    append(checks, shape, internal::numbers_checks());
    for (ConformanceCheck& check : checks) all.push_back({check.name + suffix_of(shape), std::move(check.run)});
  }
  return all;
}

void expect_conformance(const Conformance& conformance) {
  internal::run_all("LS-NO-STRATEGY", conformance_checks(conformance));
}

}  // namespace testing

}  // namespace lockstep
