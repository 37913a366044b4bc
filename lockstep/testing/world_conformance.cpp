#include "lockstep/testing/world_conformance.h"

#include <algorithm>
#include <condition_variable>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

/// How a check ended. The thread of a check that hangs keeps it.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::exception_ptr found;
};

/// Waits until the check is over, and returns true; false where nothing has happened for too long.
bool wait_for_end(Outcome& outcome, const Trial& trial) {
  std::unique_lock<std::mutex> lock(outcome.mutex);
  while (true) {
    const auto latest = trial.activity->latest();
    const auto is_over = [&] { return outcome.over; };
    if (outcome.changed.wait_until(lock, latest + trial.conformance->stuck, is_over)) return true;
    if (trial.activity->latest() == latest) return false;
  }
}

}  // namespace

std::vector<WorldCheck> all_world_checks() {
  std::vector<WorldCheck> all;
  for (const auto checks : {world_call_checks(), world_exchange_checks(), world_failure_checks(), world_memory_checks(),
                            world_window_checks(), world_end_checks()}) {
    all.insert(all.end(), checks.begin(), checks.end());
  }
  return all;
}

/// The check runs on a thread of its own, so that one that hangs can be left behind, with all that it refers to.
void run_world_check(const Trial& trial, const WorldCheck& check) {
  const auto outcome = std::make_shared<Outcome>();
  std::thread thread([outcome, trial, check] {
    const std::exception_ptr found = thrown_by([&] { check.run(trial); });
    const std::lock_guard<std::mutex> lock(outcome->mutex);
    outcome->over = true;
    outcome->found = found;
    outcome->changed.notify_all();
  });
  std::exception_ptr found;
  if (wait_for_end(*outcome, trial)) {
    thread.join();
    found = outcome->found;
    try {
      if (found) std::rethrow_exception(found);
    } catch (const NotInThisProcess&) {  // which is no finding
      throw;
    } catch (...) {
    }
  } else {
    thread.detach();
    found = std::make_exception_ptr(Finding("the check hangs: " + trial.activity->text()));
  }
  if (found) throw_found("LS-NO-WORLD", fmt::format("{} workers", trial.workers), found, check.look_at);
}

}  // namespace lockstep::internal::testing

namespace lockstep::testing {

namespace {

/// With smaller messages the checks would not test what they are for.
constexpr int64_t kLeastBytes = 65536;

}  // namespace

std::vector<ConformanceCheck> world_checks(const WorldConformance& conformance) {
  if (!conformance.make) {
    throw UsageError("LS-OPTION", "a WorldConformance has no .make", "give a function that makes the worlds of a job");
  }
  const auto& workers = conformance.workers;
  if (workers.empty() || *std::min_element(workers.begin(), workers.end()) < 2) {
    throw UsageError("LS-OPTION", fmt::format("a WorldConformance is for {} workers", fmt::join(workers, ", ")),
                     "give .workers, each at least 2");
  }
  if (conformance.largest_bytes < kLeastBytes || conformance.stuck <= conformance.patience) {
    throw UsageError("LS-OPTION",
                     fmt::format("a WorldConformance has messages of {} bytes, a patience of {} ms, and is stuck after "
                                 "{} ms",
                                 conformance.largest_bytes, conformance.patience.count(), conformance.stuck.count()),
                     fmt::format("let .largest_bytes be at least {}, and .stuck more than .patience", kLeastBytes));
  }
  const auto shared = std::make_shared<const WorldConformance>(conformance);
  std::vector<ConformanceCheck> all;
  for (const int64_t count : workers) {
    for (const internal::WorldCheck& check : internal::all_world_checks()) {
      all.push_back({fmt::format("{}_{}Workers", check.name, count), [shared, count, check] {
                       internal::run_world_check({.conformance = shared, .workers = count}, check);
                     }});
    }
  }
  return all;
}

void expect_world_conformance(const WorldConformance& conformance) {
  internal::run_all("LS-NO-WORLD", world_checks(conformance));
}

}  // namespace lockstep::testing
