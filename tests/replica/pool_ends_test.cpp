// How replica threads begin and end where something is wrong: a thread that cannot be started, a process that ends
// inside a step, and waits that last long.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/core/log.h"
#include "lockstep/replica/pool/replica_pool.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace {
std::atomic<int> threads_left{-1};  // how many may still be started; negative: any number
}

/// Stands in front of the system's, so that a test can make it fail.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.load() >= 0 && threads_left.fetch_sub(1) <= 0) {
    threads_left = 0;
    return EAGAIN;
  }
  return next(thread, attributes, body, argument);
}

namespace lockstep {
namespace {

using testing::lanes;

std::size_t threads_of_this_process() {
  using std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(directory_iterator("/proc/self/task"), directory_iterator()));
}

TEST(ReplicaThreads, AThreadThatCannotBeStartedIsAClusterErrorWithTheLimitsAndLeavesNothing) {
  { const MirroredStrategy warm_up({.devices = lanes(1), .replicas = 2}); }  // what LibTorch starts lazily is there now
  const std::size_t before = threads_of_this_process();
  for (const int started : {0, 1, 3}) {
    threads_left = started;
    const std::string replica = "replica " + std::to_string(started + 1) + " of 6";
    testing::expect_error<ClusterError>([] { const MirroredStrategy strategy({.devices = lanes(2), .replicas = 6}); },
                                        "LS-THREADS", {replica, "threads-max"});
    threads_left = -1;
    // The system lists a thread for a moment after it was joined.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (threads_of_this_process() != before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(threads_of_this_process(), before) << started;
  }
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 6});
  EXPECT_EQ(strategy.run([](ReplicaContext&) { return 1; }).size(), 6u);
}

/// Ends the process with code 7 inside a step of a static strategy, by one replica. A hang ends by an alarm.
[[noreturn]] void exit_inside_a_step(int num_lanes, int64_t by) {
  alarm(60);
  static MirroredStrategy strategy({.devices = lanes(num_lanes), .replicas = 4});
  strategy.run([&](ReplicaContext& ctx) {
    ctx.all_reduce(Reduction::kSum, torch::ones({2}));
    if (ctx.replica_id() == by) std::exit(7);
    ctx.all_reduce(Reduction::kSum, torch::ones({2}));
  });
  std::exit(1);
}

TEST(ReplicaThreads, ExitInsideAStepEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int num_lanes : {1, 2}) {
    for (const int64_t by : {0, 1, 3}) {
      EXPECT_EXIT(exit_inside_a_step(num_lanes, by), ::testing::ExitedWithCode(7), "") << num_lanes << " " << by;
    }
  }
}

TEST(ReplicaThreads, AWaitForTheFirstTurnCountsFromTheBeginOfTheRun) {
  using std::chrono::milliseconds;
  const milliseconds interval(30'000);
  EXPECT_EQ(internal::left_until_stall(milliseconds(0), interval), interval);
  EXPECT_EQ(internal::left_until_stall(milliseconds(29'000), interval), milliseconds(1'000));
  EXPECT_EQ(internal::left_until_stall(interval, interval), std::nullopt);
  EXPECT_EQ(internal::left_until_stall(milliseconds(45'000), interval), std::nullopt);
}

TEST(ReplicaThreads, AWaitForTheFirstTurnIsReported) {
  internal::set_stall_interval(std::chrono::milliseconds(20));
  std::mutex mutex;
  std::condition_variable reported;
  std::string line;
  set_log_sink([&](LogLevel level, std::string_view text) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (level == LogLevel::kWarning && line.empty()) line = text;
    reported.notify_all();
  });
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  strategy.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() != 0) return;
    std::unique_lock<std::mutex> lock(mutex);  // as at a std::barrier, where the others can never arrive
    reported.wait_for(lock, std::chrono::seconds(60), [&] { return !line.empty(); });
  });
  set_log_sink({});
  internal::set_stall_interval(std::chrono::seconds(30));
  EXPECT_NE(line.find("1 (for its first turn on lane cpu:0)"), std::string::npos) << line;
  EXPECT_NE(line.find("Not arrived: 0"), std::string::npos) << line;
}

/// A node of the graph at whose backward one replica fails and the others are stopped.
struct MeetsInBackward : torch::autograd::Function<MeetsInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x,
                               const ReplicaContext* context) {
    current() = context;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {current()->all_reduce(Reduction::kSum, gradients.front()), torch::Tensor()};
  }
  static const ReplicaContext*& current() {
    thread_local const ReplicaContext* context = nullptr;
    return context;
  }
};

TEST(ReplicaThreads, AStopInsideBackwardLeavesTheEngineOfEachThreadAsItWas) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_THROW(strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 2) throw std::runtime_error("first");
      const auto x = torch::ones({2}, torch::requires_grad());
      MeetsInBackward::apply(x * 2, &ctx).sum().backward();
    }),
                 ReplicaError);
  }
  // A backward within a backward counts how deep it is on its thread; an engine left inside one hands work to another
  // thread, where no context is.
  const auto x = torch::ones({2}, torch::requires_grad());
  (x * x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.0)));
  const auto gradients = strategy.run([&](ReplicaContext& ctx) {
    const auto y = torch::ones({2}, torch::requires_grad());
    std::string where;
    y.register_hook([&](const torch::Tensor&) { where = std::to_string(ctx.replica_id().value()); });
    MeetsInBackward::apply(y * 2, &ctx).sum().backward();
    EXPECT_EQ(where, std::to_string(ctx.replica_id().value()));
    return y.grad();
  });
  for (const auto& gradient : gradients) EXPECT_TRUE(torch::equal(gradient, torch::full({2}, 6.0)));
}

}  // namespace
}  // namespace lockstep
