// What the checks of the strategies' conformance suite share: their form, and how they compare tensors and runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/testing/conformance.h"
#include "lockstep/testing/finding.h"
#include "lockstep/testing/local_replicas.h"

namespace lockstep::internal::inline testing {

/// The workers of a check that are threads of the test: each makes the same strategies in the same order, and meets
/// the others in each of them.
class Teams {
 public:
  explicit Teams(int64_t workers) : made_(static_cast<std::size_t>(workers), 0) {}
  /// The World of the next strategy of worker `worker`. Call from any thread.
  std::shared_ptr<World> next_world(int64_t worker);

 private:
  std::mutex mutex_;
  std::vector<std::size_t> made_;                      // by worker: how many it has taken; guarded by mutex_
  std::vector<std::unique_ptr<ThreadWorkers>> teams_;  // by strategy; guarded by mutex_
};

/// One shape of a strategy: its numbers of replicas, lanes and workers. A check is run on each worker.
struct Shape {
  std::shared_ptr<const lockstep::testing::Conformance> conformance;
  int64_t replicas = 1;  // of all workers
  int lanes = 1;         // of each worker
  int first_lanes = 1;   // the number of lanes that the others are compared with
  int64_t workers = 1;
  int64_t worker = 0;                                            // this one
  std::function<std::shared_ptr<World>()> next_world = nullptr;  // of the next strategy; null with one worker

  /// A new strategy on so many lanes.
  std::unique_ptr<Strategy> make(int on_lanes) const;
  /// The same replicas on one worker of as many lanes.
  Shape on_one_worker() const { return {conformance, replicas, lanes, first_lanes}; }
  /// "4 replicas on 2 lanes", "4 replicas on 1 lane of 2 workers"
  std::string text(int on_lanes) const;

  static constexpr uint64_t kSeed = 3;
};

/// The ids of the replicas of this worker.
std::vector<int64_t> local_ids(Strategy& strategy);

/// `one(replica)` for the replicas of all workers.
template <class One>
auto of_all(const Strategy& strategy, const One& one) {
  std::vector<std::invoke_result_t<const One&, int64_t>> all;
  for (int64_t r = 0; r < strategy.num_replicas(); ++r) all.push_back(one(r));
  return all;
}

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
void expect_same_bits(const Shape& shape, const lockstep::testing::TrainingProgram& program);
/// Requires that the program leaves what it leaves on one device, but for rounding; with one replica in every bit.
void expect_like_one_device(const Shape& shape, const lockstep::testing::TrainingProgram& program);

/// Small integers from -5 to 5 that depend on the replica and the element. Their sums are exact in any order.
at::Tensor small_integers(int64_t replica, at::IntArrayRef shape, at::ScalarType type);
/// The reduction of all replicas' `values`, computed in float64.
at::Tensor reduced(Reduction reduction, const std::vector<at::Tensor>& values);

/// The exception on which the ReplicaError `found` is nested. Throws a Finding where `found` is anything else.
std::exception_ptr nested_in(std::string_view what, const std::exception_ptr& found);

/// Requires an E on the worker that has this replica, as expect_error() does, and on the others a PeerError that has
/// the first of `parts` in it.
template <class E>
void expect_error_of(Strategy& strategy, int64_t replica, std::string_view what, std::string_view expected,
                     const std::exception_ptr& found, std::initializer_list<std::string_view> parts) {
  const std::vector<int64_t> ids = local_ids(strategy);
  if (replica >= ids.front() && replica <= ids.back()) return expect_error<E>(what, expected, found, parts);
  expect_error<PeerError>(fmt::format("{}, seen from another worker,", what), "a PeerError", found, {*parts.begin()});
}

template <class Fn>
void expect_usage_error(std::string_view what, Fn&& call, std::initializer_list<std::string_view> parts = {}) {
  expect_error<UsageError>(what, "a UsageError", thrown_by(call), parts);
}
template <class Fn>
void expect_divergence_error(std::string_view what, Fn&& call, std::initializer_list<std::string_view> parts = {}) {
  expect_error<DivergenceError>(what, "a DivergenceError", thrown_by(call), parts);
}
/// Requires an error about replicas that differ: with one worker an E that has all of `parts` in it. With several, a
/// worker may see only that another one differs from it or has failed: then an E or a PeerError that has `part` in it.
template <class E>
void expect_error_of_difference(const Strategy& strategy, std::string_view what, std::string_view expected,
                                const std::exception_ptr& found, std::initializer_list<std::string_view> parts,
                                std::string_view part) {
  if (strategy.num_workers() == 1) return expect_error<E>(what, expected, found, parts);
  try {
    if (found) std::rethrow_exception(found);
  } catch (const PeerError&) {
    return expect_error<PeerError>(what, "a PeerError", found, {part});
  } catch (...) {  // expect_error() says what it is
  }
  expect_error<E>(what, expected, found, {part});
}
/// Requires that a run fails by a UsageError of its step.
template <class Step>
void expect_usage_error_in_step(Strategy& strategy, std::string_view what, Step step,
                                std::initializer_list<std::string_view> parts = {}) {
  const auto found = thrown_by([&] { strategy.run(step); });
  expect_error<UsageError>(what, "a UsageError", nested_in(what, found), parts);
}

}  // namespace lockstep::internal::testing
