// What the checks of the strategies' conformance suite share: their form, and how they compare tensors and runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/strategy/strategy.h"
#include "lockstep/testing/conformance.h"
#include "lockstep/testing/finding.h"
#include "lockstep/testing/local_replicas.h"

namespace lockstep::internal {

/// One shape of a strategy: its numbers of replicas and lanes.
struct Shape {
  std::shared_ptr<const testing::Conformance> conformance;
  int64_t replicas = 1;
  int lanes = 1;
  int first_lanes = 1;  // the number of lanes that the others are compared with

  /// A new strategy on so many lanes.
  std::unique_ptr<Strategy> make(int on_lanes) const { return conformance->make(replicas, on_lanes, kSeed); }
  /// "4 replicas on 2 lanes"
  std::string text(int on_lanes) const;

  static constexpr uint64_t kSeed = 3;
};

/// A claim. `run` throws where the claim does not hold.
template <class Subject>
struct Check {
  const char* name;            // letters and digits
  void (*run)(Subject& what);  // a strategy may be left in any state
  const char* look_at;         // the one thing to do where it fails
};
using StrategyCheck = Check<Strategy>;
using ShapeCheck = Check<const Shape>;

std::span<const StrategyCheck> matrix_checks();       // what each call does to each kind of variable
std::span<const StrategyCheck> collectives_checks();  // how values become one
std::span<const StrategyCheck> values_checks();       // values of any layout, size and dtype, NaN, infinities
std::span<const StrategyCheck> numbers_checks();      // the part of collectives that runs on `more_replicas`
std::span<const StrategyCheck> contexts_checks();     // who runs what, how often, and where
std::span<const StrategyCheck> creation_checks();     // of variables and modules
std::span<const StrategyCheck> errors_checks();       // what is refused, and that it changes nothing
std::span<const ShapeCheck> training_checks();        // which bits come out of whole programs
std::span<const ShapeCheck> one_device_checks();      // one device's numbers; needs `one_gradient_rule`
std::span<const ShapeCheck> features_checks();        // the same bits of programs that use all features of training
std::span<const ShapeCheck> one_device_features_checks();  // one device's numbers, one feature at a time; likewise

/// Equal dtype, shape and elements; NaN is equal to itself.
void expect_tensor(std::string_view what, const at::Tensor& found, const at::Tensor& expected);
/// Elements may be off by two roundings.
void expect_close(std::string_view what, const at::Tensor& found, const at::Tensor& expected);
/// Equal in every bit.
void expect_bits(std::string_view what, const at::Tensor& found, const at::Tensor& expected);

/// Requires that the program leaves the same bits each time, and the bits of the shape's first number of lanes.
void expect_same_bits(const Shape& shape, const testing::TrainingProgram& program);
/// Requires that the program leaves what it leaves on one device, but for rounding; with one replica in every bit.
void expect_like_one_device(const Shape& shape, const testing::TrainingProgram& program);

/// Small integers from -5 to 5 that depend on the replica and the element. Their sums are exact in any order.
at::Tensor small_integers(int64_t replica, at::IntArrayRef shape, at::ScalarType type);
/// The reduction of all replicas' `values`, computed in float64.
at::Tensor reduced(Reduction reduction, const std::vector<at::Tensor>& values);

/// The exception on which the ReplicaError `found` is nested. Throws a Finding where `found` is anything else.
std::exception_ptr nested_in(std::string_view what, const std::exception_ptr& found);

template <class Fn>
void expect_usage_error(std::string_view what, Fn&& call, std::initializer_list<std::string_view> parts = {}) {
  expect_error<UsageError>(what, "a UsageError", thrown_by(call), parts);
}
template <class Fn>
void expect_divergence_error(std::string_view what, Fn&& call, std::initializer_list<std::string_view> parts = {}) {
  expect_error<DivergenceError>(what, "a DivergenceError", thrown_by(call), parts);
}
/// Requires that a run fails by a UsageError of its step.
template <class Step>
void expect_usage_error_in_step(Strategy& strategy, std::string_view what, Step step,
                                std::initializer_list<std::string_view> parts = {}) {
  const auto found = thrown_by([&] { strategy.run(step); });
  expect_error<UsageError>(what, "a UsageError", nested_in(what, found), parts);
}

}  // namespace lockstep::internal
