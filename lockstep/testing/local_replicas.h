// For tests of one's own training code, under any test framework: many replicas on few lanes, and whether a program
// computes the same with them as on one device. docs/testing.md shows it in use.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/strategy/mirrored.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::testing {

struct LocalReplicasOptions {
  int64_t replicas = 4;  // at least `lanes`
  int lanes = 1;
  Copies copies = Copies::kPerMemory;
  uint64_t seed = 0;
  int threads_per_replica = 1;
};

/// A MirroredStrategy, bit for bit, that takes no core for itself, so that tests may run side by side.
class LocalReplicas final : public Strategy {
 public:
  explicit LocalReplicas(LocalReplicasOptions options = {});
};

/// Trains on the strategy that it is given: makes its module, optimizer and data there, calls `observe()` once before
/// the first step and after each step, outside of steps. The kit calls it several times, and each time LibTorch's
/// global generator is that of a new process. Every living variable of the strategy is looked at: parameters, slots,
/// buffers, metrics. All their values are kept for each step, so models are small and steps few.
using TrainingProgram = std::function<void(Strategy& strategy, const std::function<void()>& observe)>;

struct CompareOptions {
  /// With 6 replicas the parts of most batches are uneven. 1: one device, which must be met in every bit.
  int64_t replicas = 6;
  /// How many lanes to try, each at most `replicas`. Empty: 1, 2 and `replicas`.
  std::vector<int> lanes = {};
  /// How far an element may be from one device's, as a share of the farthest that any element of its variable has moved
  /// there since the start. What rounding explains is allowed besides: one rounding of the largest element for each
  /// step, and 64 of the farthest that any parameter has moved (for a slot: any slot of its name).
  double tolerance = 1e-3;
  uint64_t seed = 0;
};

/// Runs `program` on one device and on many replicas, and these on several numbers of lanes. Returns where after each
/// step all variables are one device's within the tolerance, sums having been rounded in another order; and the same
/// bits on any number of lanes, each replica's component of on-read variables too.
///
/// Otherwise throws a DivergenceError that names the first step that differs, the first variable, the replicas and
/// lanes, an element with both values and their distance, and one thing to check. What the program throws passes
/// through; a UsageError where it does not call `observe()` as it should.
///
/// Programs that draw random numbers in a step (dropout) or look across samples (BatchNorm) are not one device's.
/// On-read variables without aggregation have no one value, so one device's are not looked at.
void expect_same_as_one_device(const TrainingProgram& program, const CompareOptions& options = {});

/// The second half of it, which holds for any program: the same bits on any number of lanes.
void expect_same_on_any_lanes(const TrainingProgram& program, const CompareOptions& options = {});

}  // namespace lockstep::testing
