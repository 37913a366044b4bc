// A strategy in a child that was forked after it was made: its threads do not exist there, and no call waits for them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::has_value;
using testing::lanes;

/// Runs `body` in a forked child, which ends by an alarm where it hangs, and expects that it returns true.
void expect_in_child(const std::function<bool()>& body, const testing::Where& where = testing::Where::current()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    bool held = false;
    try {
      held = body();
    } catch (...) {
      _exit(3);
    }
    _exit(held ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  testing::fail_at(where, WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                              : "exit code " + std::to_string(WEXITSTATUS(status)));
}

/// Whether `call` throws the UsageError LS-FORKED with each of the values.
bool is_refused(const std::function<void()>& call, std::initializer_list<std::string> values) {
  try {
    call();
  } catch (const UsageError& error) {
    if (error.code() != "LS-FORKED" || error.remedy().empty()) return false;
    for (const std::string& value : values) {
      if (!has_value(error.what(), value)) return false;
    }
    return true;
  }
  return false;
}

TEST(ForkedChild, ARunAndAnEvaluationAreRefused) {
  for (const int num_lanes : {1, 2}) {
    MirroredStrategy strategy({.devices = lanes(num_lanes), .replicas = 3});
    strategy.run([](ReplicaContext&) {});
    const std::string parent = "process " + std::to_string(getpid());
    expect_in_child([&] {
      bool called = false;
      const auto body = [&](ReplicaContext&) { called = true; };
      return is_refused([&] { strategy.run(body); }, {"replicas 1 to 2", parent}) &&
             is_refused([&] { strategy.evaluate(body); }, {"replicas 1 to 2", parent}) && !called;
    });
    EXPECT_EQ(strategy.run([](ReplicaContext&) { return 1; }).size(), 3u) << "the parent goes on";
  }
}

TEST(ForkedChild, ARefusedRunRollsNothingBack) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable seen = strategy.make_variable(torch::zeros({3}), {.name = "seen",
                                                                   .trainable = false,
                                                                   .synchronization = VariableSynchronization::kOnRead,
                                                                   .aggregation = VariableAggregation::kSum});
  const auto count = [&](ReplicaContext& ctx) { seen.assign_add(ctx, torch::ones({3})); };
  strategy.run(count);
  strategy.run(count);
  seen.assign(torch::full({3}, 10.0));
  expect_in_child([&] {
    return is_refused([&] { strategy.run(count); }, {}) && torch::equal(seen.read(), torch::full({3}, 10.0));
  });
}

TEST(ForkedChild, AStrategyOfTheParentEndsWithoutItsThreads) {
  for (const int num_lanes : {1, 2}) {
    auto strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = lanes(num_lanes), .replicas = 4});
    expect_in_child([&] {
      strategy.reset();
      return true;
    });
  }
}

TEST(ForkedChild, AStrategyThatIsMadeInTheChildRuns) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer refuses threads in a forked child";
#endif
  MirroredStrategy before({.devices = lanes(2), .replicas = 4});
  before.run([](ReplicaContext&) {});
  expect_in_child([] {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 3});
    const auto sums =
        strategy.run([](ReplicaContext& ctx) { return ctx.all_reduce(Reduction::kSum, torch::ones({2})); });
    return torch::equal(sums[2], torch::full({2}, 3.0));
  });
}

TEST(ForkedChild, AStrategyWithoutThreadsRuns) {
  OneDeviceStrategy strategy;
  expect_in_child([&] { return strategy.run([](ReplicaContext& ctx) { return ctx.replica_id() == 0; })[0]; });
}

TEST(ForkedChild, AForkInsideAStepEndsAtTheNextMeetingAndAtTheEndOfTheStep) {
  for (const bool meets : {true, false}) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 4});
    std::atomic<bool> in_child{false};
    bool refused = false;
    pid_t child = -1;
    const auto step = [&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 0) {
        child = fork();
        in_child = child == 0;
        if (in_child) alarm(30);
      }
      if (meets || !in_child) ctx.all_reduce(Reduction::kSum, torch::ones({2}));
    };
    try {
      strategy.run(step);
    } catch (const UsageError& error) {
      refused = error.code() == "LS-FORKED";
    } catch (...) {
    }
    if (in_child) _exit(refused ? 0 : 1);
    EXPECT_FALSE(refused);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << meets << " " << status;
  }
}

TEST(ForkedChild, AForkInsideAMergeFunctionEndsTheChildInsteadOfAWait) {
  for (const auto& [replicas, num_lanes] : {std::pair(2, 1), std::pair(3, 1), std::pair(3, 2)}) {
    MirroredStrategy strategy({.devices = lanes(num_lanes), .replicas = replicas});
    bool in_child = false;
    pid_t child = -1;
    const auto step = [&](ReplicaContext& ctx) {
      ctx.merge_call([&](Strategy&) {
        child = fork();
        in_child = child == 0;
        if (!in_child) return;
        alarm(30);
        signal(SIGABRT, [](int) { _exit(7); });  // std::terminate on the thread of another replica
      });
    };
    try {
      strategy.run(step);
    } catch (const UsageError&) {
      if (in_child) _exit(7);  // on the caller's thread
    }
    if (in_child) _exit(1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << replicas << " " << num_lanes << " " << status;
  }
}

/// One worker of two.
class Half final : public Strategy {
 public:
  explicit Half(std::shared_ptr<World> world)
      : Strategy(StrategySetup{.name = "Half",
                               .topology = std::make_shared<HostTopology>(lanes(1), 2, false),
                               .world = std::move(world)}) {}
};

TEST(ForkedChild, AWorkerThatWaitsForOthersIsRefused) {
  const ThreadWorkers workers(2, std::chrono::seconds(60));
  std::vector<std::unique_ptr<Half>> halves(2);
  std::thread other([&] { halves[1] = std::make_unique<Half>(workers.world(1)); });
  halves[0] = std::make_unique<Half>(workers.world(0));
  other.join();
  expect_in_child([&] {
    const bool refused = is_refused([&] { halves[0]->run([](ReplicaContext&) {}); }, {"workers 0 to 1"}) &&
                         is_refused([&] { halves[0]->evaluate([](ReplicaContext&) {}); }, {"workers 0 to 1"});
    halves[0].reset();
    return refused;
  });
}

}  // namespace
}  // namespace lockstep
