// Tests of everything that programs rely on with any strategy; for users who write a strategy, under any test
// framework. docs/testing.md shows it in use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/strategy/strategy.h"
#include "lockstep/testing/conformance/conformance_check.h"

namespace lockstep {
class World;
}

namespace lockstep::testing {

/// This process, where each worker of a test is a process of its own.
struct WorkerProcess {
  int64_t index = 0;
  /// The World of this worker's next strategy: the n-th one meets the n-th one of each other worker.
  std::function<std::shared_ptr<World>()> next_world;
};

/// A strategy to test, and what it promises.
struct Conformance {
  /// A new strategy of so many replicas on so many lanes. Null where the strategy has no such shape; the shape is then
  /// left out.
  std::function<std::unique_ptr<Strategy>(int64_t replicas, int lanes, uint64_t seed)> make;
  std::vector<int64_t> replicas = {1, 3, 4};  // each on all of `lanes` that are not larger
  std::vector<int> lanes = {1, 2};
  /// Whether a training step gives what one device gives on the whole global batch, but for rounding. False for a
  /// strategy that lets replicas train locally for a while, as local SGD does.
  bool one_gradient_rule = true;
  /// Further numbers of replicas, each on the first of `lanes` that divides it. On these only collectives are tested. A
  /// number is left out where `make` gives null or a strategy with another number of replicas, or throws a UsageError.
  std::vector<int64_t> more_replicas = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  /// For a strategy of several workers: makes the strategy of one worker, which meets the others in `world`. All checks
  /// then run on each number of `workers` too; the workers are threads of the test, and what programs leave on them is
  /// compared with one worker. It gives a strategy for each shape for which `make` gives one. Empty for a strategy of
  /// one worker.
  std::function<std::unique_ptr<Strategy>(std::shared_ptr<World> world, int64_t replicas, int lanes, uint64_t seed)>
      make_on_worker = nullptr;
  std::vector<int64_t> workers = {2, 3, 4};  // each with all of `replicas` and `lanes` that give each lane a replica
  /// Where workers are processes: each of them runs the same checks, in the same order, and is the one that this says.
  /// `workers` is then their number, and nothing is checked on one worker alone.
  std::optional<WorkerProcess> process = std::nullopt;
};

/// All checks on all shapes, so that each can be a separate test. They are independent of each other and of the order
/// in which they run. A UsageError where there is no shape to test; what `make` throws passes through.
std::vector<ConformanceCheck> conformance_checks(const Conformance& conformance);

/// Runs all checks. Returns where the strategy keeps what strategies promise: the matrix of docs/variables.md;
/// collectives of values of any layout, size and dtype, inside and outside of steps; contexts and merge functions;
/// creation of variables and modules; equal bits each time and on any number of lanes; one device's results; and
/// errors. Otherwise throws a DivergenceError that lists each check that failed, with its shape, what was found, and
/// where to look.
void expect_conformance(const Conformance& conformance);

}  // namespace lockstep::testing
