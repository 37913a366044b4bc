#include "lockstep/testing/local_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/kinds/one_device.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/testing/difference.h"
#include "lockstep/testing/recording.h"

namespace lockstep::testing {

using internal::Difference;
using internal::first_difference;
using internal::record;
using internal::Recording;

namespace {

StrategySetup setup_of(const LocalReplicasOptions& options) {
  if (options.replicas < 1 || options.lanes < 1) {
    throw UsageError("LS-OPTION",
                     fmt::format("{} on {} were asked for", internal::counted(options.replicas, "replica"),
                                 internal::counted(options.lanes, "lane")),
                     "ask for at least one of each");
  }
  std::vector<std::string> devices;
  for (int lane = 0; lane < options.lanes; ++lane) devices.push_back(fmt::format("cpu:{}", lane));
  StrategySetup setup{
      .name = "LocalReplicas", .seed = options.seed, .threads_per_replica = options.threads_per_replica};
  // Not pinned: another test's lanes would be pinned to the same cores.
  setup.topology = std::make_shared<HostTopology>(std::move(devices), options.replicas, /*pinned=*/false);
  if (options.copies == Copies::kPerReplica) setup.placement = std::make_shared<OwnCopyPlacement>();
  return setup;
}

std::vector<int> lanes_to_try(const CompareOptions& options) {
  if (!options.lanes.empty()) return options.lanes;
  std::vector<int> lanes;
  for (const int64_t count : {int64_t{1}, int64_t{2}, options.replicas}) {
    const bool known = !lanes.empty() && lanes.back() >= count;
    if (!known && count <= options.replicas) lanes.push_back(static_cast<int>(count));
  }
  return lanes;
}

Recording on_one_device(const TrainingProgram& program, const CompareOptions& options) {
  OneDeviceStrategy strategy({.seed = options.seed});
  return record(program, strategy, "one device");
}

Recording on_lanes(const TrainingProgram& program, const CompareOptions& options, int lanes) {
  LocalReplicas strategy({.replicas = options.replicas, .lanes = lanes, .seed = options.seed});
  return record(program, strategy,
                fmt::format("{} replica{} on {} lane{}", options.replicas, options.replicas == 1 ? "" : "s", lanes,
                            lanes == 1 ? "" : "s"));
}

/// Throws a DivergenceError where a program does not repeat itself. Nothing else need be looked for then.
void require_repeats(const Recording& first, Recording again) {
  again.who += ", run again";
  if (const auto difference = first_difference(first, again, std::nullopt)) {
    throw DivergenceError(
        "LS-NOT-REPEATABLE", difference->fact,
        "look for something that does not depend on the seed alone: a generator seeded by time, a static counter, an "
        "address; draw with LibTorch's random operators or from ctx.random()");
  }
}

void require_same_bits(const TrainingProgram& program, const CompareOptions& options, const Recording& expected) {
  const std::vector<int> lanes = lanes_to_try(options);
  for (auto count = lanes.begin() + 1; count != lanes.end(); ++count) {
    const auto difference = first_difference(expected, on_lanes(program, options, *count), std::nullopt);
    if (!difference) continue;
    require_repeats(expected, on_lanes(program, options, lanes.front()));
    throw DivergenceError(
        "LS-LANES-DECIDE", difference->fact,
        "look for data that replicas share without Lockstep: a static or captured object that steps "
        "write, a random generator of the program; use on-read variables, ctx.all_reduce and ctx.random()");
  }
}

}  // namespace

LocalReplicas::LocalReplicas(LocalReplicasOptions options) : Strategy(setup_of(options)) {}

void expect_same_as_one_device(const TrainingProgram& program, const CompareOptions& options) {
  if (!(options.tolerance >= 0 && std::isfinite(options.tolerance))) {
    throw UsageError("LS-OPTION", fmt::format("a .tolerance of {} was given", options.tolerance),
                     "give a finite number from 0");
  }
  const Recording one = on_one_device(program, options);
  const int lanes = lanes_to_try(options).front();
  const Recording many = on_lanes(program, options, lanes);
  const auto tolerance = options.replicas == 1 ? std::nullopt : std::optional<double>(options.tolerance);
  if (const auto difference = first_difference(one, many, tolerance)) {
    require_repeats(one, on_one_device(program, options));
    require_repeats(many, on_lanes(program, options, lanes));
    throw DivergenceError("LS-NOT-ONE-DEVICE", difference->fact, what_to_check(*difference, options.replicas));
  }
  require_same_bits(program, options, many);
}

void expect_same_on_any_lanes(const TrainingProgram& program, const CompareOptions& options) {
  require_same_bits(program, options, on_lanes(program, options, lanes_to_try(options).front()));
}

}  // namespace lockstep::testing
