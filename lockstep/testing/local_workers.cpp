#include "lockstep/testing/local_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/testing/difference.h"
#include "lockstep/testing/recording.h"

namespace lockstep::testing {

using internal::first_difference;
using internal::part_of;
using internal::Recording;

namespace {

class OneOfLocalWorkers final : public Strategy {
 public:
  OneOfLocalWorkers(std::shared_ptr<World> world, const LocalWorkersOptions& options)
      : Strategy(setup_of(std::move(world), options)) {}

 private:
  static StrategySetup setup_of(std::shared_ptr<World> world, const LocalWorkersOptions& options) {
    std::vector<std::string> devices;
    for (int lane = 0; lane < options.lanes; ++lane) devices.push_back(fmt::format("cpu:{}", lane));
    StrategySetup setup{.name = "LocalWorkers", .world = std::move(world), .seed = options.seed};
    // Not pinned: all workers' lanes, and another test's, would be pinned to the same cores.
    setup.topology = std::make_shared<HostTopology>(std::move(devices), options.replicas, /*pinned=*/false);
    return setup;
  }
};

bool is_of_another_worker(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::vector<int64_t> workers_to_try(const CompareWorkersOptions& options) {
  if (!options.workers.empty()) return options.workers;
  std::vector<int64_t> all{2, 3, 4};
  std::erase_if(all, [&](int64_t workers) { return workers > options.replicas; });
  return all;
}

/// What each worker recorded.
std::vector<Recording> on_workers(const TrainingProgram& program, const CompareWorkersOptions& options,
                                  int64_t workers) {
  std::vector<Recording> all(static_cast<std::size_t>(workers));
  const internal::GeneratorOfNewProcess generator;
  LocalWorkers({.workers = workers, .replicas = options.replicas, .seed = options.seed}).run([&](Strategy& strategy) {
    const int64_t w = strategy.worker_index();
    std::string who = workers == 1 ? "one worker" : fmt::format("worker {} of {}", w, workers);
    all[static_cast<std::size_t>(w)] = internal::record_with_generator(program, strategy, std::move(who));
  });
  return all;
}

}  // namespace

LocalWorkers::LocalWorkers(LocalWorkersOptions options) : options_(std::move(options)) {
  const bool has_one_of_each = options_.workers >= 1 && options_.lanes >= 1 && options_.replicas >= 1;
  if (has_one_of_each) {
    static_cast<void>(ThreadWorkers(options_.workers, options_.patience, options_.hosts));  // throws for other hosts
    return;
  }
  throw UsageError(
      "LS-OPTION",
      fmt::format("{} on {} of {} were asked for", internal::counted(options_.replicas, "replica"),
                  internal::counted(options_.lanes, "lane"), internal::counted(options_.workers, "worker")),
      "ask for at least one of each");
}

void LocalWorkers::run(const std::function<void(Strategy&)>& body) const {
  const auto count = static_cast<std::size_t>(options_.workers);
  std::vector<std::exception_ptr> errors(count);
  {
    ThreadWorkers team(options_.workers, options_.patience, options_.hosts);
    std::vector<std::jthread> threads;  // before an error here passes on, all have ended
    for (std::size_t w = 0; w < count; ++w) {
      threads.emplace_back([&, w, world = team.world(static_cast<int64_t>(w))]() mutable {
        try {
          OneOfLocalWorkers strategy(std::move(world), options_);
          body(strategy);
        } catch (...) {
          errors[w] = std::current_exception();
        }
      });
    }
  }
  std::erase(errors, nullptr);
  if (errors.empty()) return;
  const auto own = std::find_if_not(errors.begin(), errors.end(), is_of_another_worker);
  std::rethrow_exception(own != errors.end() ? *own : errors.front());
}

void expect_same_as_one_worker(const TrainingProgram& program, const CompareWorkersOptions& options) {
  const Recording one = on_workers(program, options, 1).front();
  for (const int64_t workers : workers_to_try(options)) {
    const std::vector<Recording> all = on_workers(program, options, workers);
    for (int64_t w = 0; w < workers; ++w) {
      const Recording expected = part_of(one, options.replicas, workers, w);
      const auto difference = first_difference(expected, all[static_cast<std::size_t>(w)], std::nullopt);
      if (!difference) continue;
      Recording again = on_workers(program, options, 1).front();
      again.who += ", run again";
      if (const auto other = first_difference(one, again, std::nullopt)) {
        throw DivergenceError(
            "LS-NOT-REPEATABLE", other->fact,
            "look for something that does not depend on the seed alone: a generator seeded by time, a static counter, "
            "an address; draw with LibTorch's random operators in steps, or from ctx.random()");
      }
      throw DivergenceError(
          "LS-WORKERS-DECIDE", difference->fact,
          "look for what is another one on each worker: samples that the program deals itself, a seed or a file chosen "
          "by worker_index(), the global generator; use distribute(), on-read variables and ctx.all_reduce");
    }
  }
}

}  // namespace lockstep::testing
