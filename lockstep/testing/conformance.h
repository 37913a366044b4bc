// Whether a strategy is one: everything that programs rely on with any strategy, for tests of a strategy of one's own,
// under any test framework. docs/testing.md shows it in use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/strategy/strategy.h"

namespace lockstep::testing {

/// A strategy to look at, and what it promises.
struct Conformance {
  /// A new strategy of so many replicas on so many lanes; null where it has no such shape, which is then left out.
  std::function<std::unique_ptr<Strategy>(int64_t replicas, int lanes, uint64_t seed)> make;
  std::vector<int64_t> replicas = {1, 3, 4};  // each of them on each number of lanes up to it
  std::vector<int> lanes = {1, 2};
  /// Whether a training step is one device's on the whole global batch, but for rounding. A strategy that lets replicas
  /// train locally for a while, local SGD, says no.
  bool one_gradient_rule = true;
  /// Further numbers of replicas, on the first of `lanes` that divides them: of these it is looked at alone how values
  /// become one. A number for which `make` gives null, another number, or a UsageError is left out.
  std::vector<int64_t> more_replicas = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
};

/// One claim about strategies of one shape.
struct ConformanceCheck {
  std::string name;           // letters, digits and underscores: "ReduceIsOfEveryReplicasValueOnce_4ReplicasOn2Lanes"
  std::function<void()> run;  // makes strategies of its own; a DivergenceError says what was found and where to look
};

/// All checks on all shapes, so that each can be a test of its own. They are independent of each other and of the order
/// in which they run. A UsageError where there is no shape to look at; what `make` throws passes through.
std::vector<ConformanceCheck> conformance_checks(const Conformance& conformance);

/// Runs them all. Returns where the strategy keeps what strategies promise: the matrix of docs/variables.md, reduce and
/// gather and their like in a step, of values of any layout, size and dtype, contexts and merge functions, creation of
/// variables and modules, equal bits each time and on any number of lanes, one device's results, and errors. Otherwise
/// throws a DivergenceError that lists each check that failed with its shape, what was found, and where to look.
void expect_conformance(const Conformance& conformance);

}  // namespace lockstep::testing
