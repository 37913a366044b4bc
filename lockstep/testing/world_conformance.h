// Tests of everything that the library relies on with any World; for users who write an engine, under any test
// framework. docs/testing.md shows it in use.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/testing/conformance/conformance_check.h"

namespace lockstep::testing {

/// Worlds to test.
struct WorldConformance {
  /// Makes the worlds of one new job of so many workers, all in this process: [i] is worker i's. Each is used, and
  /// destroyed, by one thread at a time; abort() alone is called by others. A call of these worlds gives up a worker
  /// that does not come for `patience`. Other jobs may exist at the same time.
  std::function<std::vector<std::shared_ptr<World>>(int64_t workers, std::chrono::milliseconds patience)> make;
  std::vector<int64_t> workers = {2, 3, 4, 8};
  /// Of one message; at least 64 KiB. At most four of this size exist at a time.
  int64_t largest_bytes = int64_t{64} << 20;
  /// What `make` is given where no worker may be given up; only wrong worlds wait until it ends. The checks of the
  /// patience itself choose their own.
  std::chrono::milliseconds patience = std::chrono::seconds(20);
  /// A check in which no worker begins or ends a call for so long is stopped. More than `patience`.
  std::chrono::milliseconds stuck = std::chrono::seconds(60);
};

/// All checks for each number of workers, so that each can be a separate test. They are independent of each other and
/// of the order in which they run. A UsageError where there is no `.make`, or where a member has no meaning.
///
/// A check runs its workers as threads. One that hangs ends with a DivergenceError that says what each worker was
/// doing; its threads and worlds then stay until the process ends. NothingIsLeftOfWorlds counts the threads, open files
/// and shared mappings of the whole process, so nothing else may start or open some while it runs.
std::vector<ConformanceCheck> world_checks(const WorldConformance& conformance);

/// Runs all checks. Returns where the worlds keep what World promises. Otherwise throws a DivergenceError that lists
/// each check that failed, with the number of workers, what was found, and where to look.
void expect_world_conformance(const WorldConformance& conformance);

}  // namespace lockstep::testing
