// For users' tests of training code, under any test framework: many replicas on few lanes, and a test whether a program
// computes the same with them as on one device. docs/testing.md shows it in use.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/strategy/kinds/mirrored.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::testing {

struct LocalReplicasOptions {
  int64_t replicas = 4;  // at least `lanes`
  int lanes = 1;
  Copies copies = Copies::kPerMemory;
  uint64_t seed = 0;
  int threads_per_replica = 1;
};

/// Computes what a MirroredStrategy computes, in every bit, but pins no core, so that tests may run side by side.
class LocalReplicas final : public Strategy {
 public:
  explicit LocalReplicas(LocalReplicasOptions options = {});
};

/// Trains on the strategy that it is given: makes its module, optimizer and data there, and calls `observe()` once
/// before the first step and once after each step, outside of steps. The kit calls it several times, and each time
/// LibTorch's global generator is that of a new process. Every living variable of the strategy is compared: parameters,
/// slots, buffers, metrics. All their values are kept for each step, so use a small model and few steps.
using TrainingProgram = std::function<void(Strategy& strategy, const std::function<void()>& observe)>;

struct CompareOptions {
  /// With 6 replicas the parts of most batches are uneven. With 1 every bit must be that of one device.
  int64_t replicas = 6;
  /// How many lanes to try, each at most `replicas`. Empty: 1, 2 and `replicas`.
  std::vector<int> lanes = {};
  /// How far an element may be from one device's, as a share of the farthest that any element of its variable has moved
  /// there since the start. Rounding is allowed in addition: for each step one rounding of the largest element, and 64
  /// roundings of the farthest that any parameter has moved (for a slot: any slot of its name).
  double tolerance = 1e-3;
  uint64_t seed = 0;
};

/// Runs `program` on one device, and on many replicas with several numbers of lanes. Returns where, after each step,
/// all variables are one device's within the tolerance, as sums are rounded in another order, and where they have the
/// same bits on every number of lanes, each replica's component of on-read variables included.
///
/// Otherwise throws a DivergenceError that names the first step that differs, the first variable, the replicas and
/// lanes, an element with both values and their distance, and one thing to check. What the program throws passes
/// through; a UsageError where it does not call `observe()` as it should.
///
/// Programs that draw random numbers in a step (dropout) or look across samples (BatchNorm) do not give one device's
/// results. On-read variables without aggregation have no single value, so they are not compared with one device's.
void expect_same_as_one_device(const TrainingProgram& program, const CompareOptions& options = {});

/// The second half of expect_same_as_one_device(), which holds for any program: the same bits on every number of lanes.
void expect_same_on_any_lanes(const TrainingProgram& program, const CompareOptions& options = {});

}  // namespace lockstep::testing
