// What LibTorch's own process groups take for success, crash at or wait for: workers, which are processes of each
// engine, that come to one meeting with calls that do not fit together. Each is an error on all workers that shows both
// sides, before any value is added, and all go on.
//
// The other rows of that table are tests of comm/: WorkerFaults (killed, stopped), Rendezvous and NetworkRendezvous (an
// index twice, a worker that never starts), HostileConnections and HostileInsiders (what strangers send).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "tests/support/free_port.h"
#include "tests/support/hosts.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::report;
using testing::WorkerProcesses;

/// What the workers train, with two optimizers, and what they have in common.
struct Two {
  explicit Two(Strategy& strategy)
      : a(strategy.make_variable(torch::ones({300}), {.name = "a"})),
        b(strategy.make_variable(torch::full({300}, 2.0), {.name = "b"})),
        of_a(strategy.make_optimizer({a}, torch::optim::SGDOptions(0.1), {.name = "of a"})),
        of_b(strategy.make_optimizer({b}, torch::optim::SGDOptions(0.1), {.name = "of b"})) {}

  void backward(const ReplicaContext& ctx, double factor) const {
    ((a.value(ctx) + b.value(ctx)).pow(2).sum() * factor).backward();
  }

  Variable a;
  Variable b;
  Optimizer of_a;
  Optimizer of_b;
};

constexpr std::source_location kPlaceOfA = std::source_location::current();
constexpr std::source_location kPlaceOfB = std::source_location::current();

/// A step in which one worker, where `other` is true, does not do what the others do.
struct Misfit {
  const char* name;
  std::function<void(const Two&, ReplicaContext&, bool other)> step;
  const char* code;
  std::vector<std::string> values;  // in the message, on all workers
};

const std::vector<Misfit>& misfits() {
  static const std::vector<Misfit> all{
      {"shape",
       [](const Two&, ReplicaContext& ctx, bool other) {
         ctx.all_reduce(Reduction::kSum, torch::ones({other ? 200 : 100}));
       },
       "LS-WORKER-ORDER",
       {"Float [100]", "Float [200]", "worker 2", "at misfits_test.cpp:"}},
      {"dtype",
       [](const Two&, ReplicaContext& ctx, bool other) {
         ctx.all_reduce(Reduction::kSum, torch::ones({100}, other ? torch::kInt : torch::kFloat));
       },
       "LS-WORKER-ORDER",
       {"Float [100]", "Int [100]", "worker 2"}},
      {"order",
       [](const Two& two, ReplicaContext& ctx, bool other) {
         two.backward(ctx, 1);
         (other ? two.of_b : two.of_a).step(ctx);
         (other ? two.of_a : two.of_b).step(ctx);
       },
       "LS-WORKER-ORDER",
       {"'of a'", "'of b'", "worker 2"}},
      {"order without names",
       [](const Two& two, ReplicaContext& ctx, bool other) {
         const auto of_a = [&] { return ctx.all_reduce(Reduction::kSum, two.a.value(ctx).detach(), kPlaceOfA); };
         const auto of_b = [&] { return ctx.all_reduce(Reduction::kSum, two.b.value(ctx).detach(), kPlaceOfB); };
         const torch::Tensor first = other ? of_b() : of_a();
         const torch::Tensor second = other ? of_a() : of_b();
         two.backward(ctx, (first.sum() + second.sum()).item<double>());
         two.of_a.step(ctx);
       },
       "LS-MEETING-ORDER",
       {"replica 0 (worker 0) made all_reduce at misfits_test.cpp:" + std::to_string(kPlaceOfA.line()),
        "replica 2 (worker 2) made all_reduce at misfits_test.cpp:" + std::to_string(kPlaceOfB.line())}},
      {"order at the end",
       [](const Two&, ReplicaContext& ctx, bool other) {
         ctx.all_gather(torch::ones({2}), 0, other ? kPlaceOfB : kPlaceOfA);
         ctx.all_gather(torch::ones({2}), 0, other ? kPlaceOfA : kPlaceOfB);
       },
       "LS-MEETING-ORDER",
       {"replica 0 (worker 0) made all_gather at", "replica 2 (worker 2) made all_gather at"}},
      {"reduction",
       [](const Two&, ReplicaContext& ctx, bool other) {
         ctx.all_reduce(other ? Reduction::kMax : Reduction::kSum, torch::ones({2048}));
       },
       "LS-WORKER-ORDER",
       {"all_reduce(sum", "all_reduce(max", "worker 2"}},
      {"not a number",
       [](const Two& two, ReplicaContext& ctx, bool other) {
         two.backward(ctx, other ? NAN : 1.0);
         two.of_a.step(ctx, {.check_finite = true});
       },
       "LS-NOT-FINITE",
       {"'a' on replica 2 (worker 2)"}},
      {"collective",
       [](const Two&, ReplicaContext& ctx, bool other) {
         if (other) {
           ctx.broadcast(0, torch::ones({100}));
         } else {
           ctx.all_reduce(Reduction::kSum, torch::ones({100}));
         }
       },
       "LS-WORKER-ORDER",
       {"all_reduce(sum", "broadcast(from replica 0", "worker 2"}},
  };
  return all;
}

std::shared_ptr<World> join_by_environment() {
  const std::string engine = std::getenv("ENGINE");
  if (engine != "mixed") return join(resolve_cluster(), {.engine = engine});
  const int port = std::atoi(std::getenv("PORT"));
  return testing::join_from_host(
      {.hosts = "001", .worker = testing::my_worker_index(), .port = static_cast<uint16_t>(port)});
}

WORKER_BODY(makes_calls_that_do_not_fit) {
  torch::set_num_threads(1);
  OneOfSeveral strategy(join_by_environment(), 3, 1, nullptr);
  const Two two(strategy);
  const bool other = strategy.worker_index() == 2;
  const auto digest = [&] { return sha256_of({{"a", two.a.read()}, {"b", two.b.read()}}); };
  for (const Misfit& one : misfits()) {
    const std::string before = digest();
    const std::string begin = std::string(one.name) + ": ";
    try {
      strategy.run([&](ReplicaContext& ctx) { one.step(two, ctx, other); });
      report(begin + "nothing was thrown");
    } catch (const ReplicaError& error) {
      const std::string text = message_of(error.exceptions().front());
      report(begin + (digest() == before ? text : "values were changed before " + text));
    }
  }
  strategy.run([&](ReplicaContext& ctx) {
    two.backward(ctx, 0.5);
    two.of_a.step(ctx);
  });
  report("goes on with " + digest());
}

class Misfits : public ::testing::TestWithParam<std::string> {};

TEST_P(Misfits, AreNamedOnAllWorkersBeforeAnythingIsAddedAndAllGoOn) {
  constexpr int64_t kWorkers = 3;
  const std::string port = std::to_string(testing::free_port());
  WorkerProcesses workers("makes_calls_that_do_not_fit", kWorkers, [&](int64_t w) {
    return WorkerProcesses::Environment{{"ENGINE", GetParam()},
                                        {"PORT", port},
                                        {"LOCKSTEP_NUM_WORKERS", std::to_string(kWorkers)},
                                        {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                        {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
                                        {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + port},
                                        {"LOCKSTEP_JOB_ID", "misfits-test-" + std::to_string(getpid())},
                                        {"LOCKSTEP_SECRET", "a secret of the test"}};
  });
  for (const Misfit& one : misfits()) {
    for (int64_t w = 0; w < kWorkers; ++w) {
      const std::string begin = std::string(one.name) + ": ";
      const std::string text = workers.expect(w, begin, std::chrono::seconds(120)).text;
      EXPECT_EQ(text.find("values were changed"), std::string::npos) << text;
      EXPECT_NE(text.find(std::string("[") + one.code + "]"), std::string::npos) << "worker " << w << ", " << text;
      for (const std::string& value : one.values)
        EXPECT_NE(text.find(value), std::string::npos) << value << " on worker " << w << ", " << text;
    }
  }
  const auto goes_on = workers.expect_all("goes on with ");
  for (const auto& last : goes_on) EXPECT_EQ(last.text, goes_on.front().text);
  for (int64_t w = 0; w < kWorkers; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
}

INSTANTIATE_TEST_SUITE_P(Engines, Misfits, ::testing::Values("shared-memory", "tls", "tcp", "mixed"),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

WORKER_BODY(joins_with_other_instructions) {
  report("is " + internal::platform_description());
  try {
    join(resolve_cluster(), {.engine = std::getenv("ENGINE")});
    report("joined");
  } catch (const ClusterError& error) {
    report("refused: " + std::string(error.what()));
  }
}

TEST(MisfitsAtTheJoin, WhoseLibTorchUsesOtherInstructionsAreNamed) {
  for (const std::string engine : {"shared-memory", "tls"}) {
    const uint16_t port = testing::free_port();
    WorkerProcesses workers("joins_with_other_instructions", 2, [&](int64_t w) {
      WorkerProcesses::Environment environment{{"ENGINE", engine},
                                               {"LOCKSTEP_NUM_WORKERS", "2"},
                                               {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                               {"LOCKSTEP_CHIEF_ADDRESS", fmt::format("127.0.0.1:{}", port)},
                                               {"LOCKSTEP_JOB_ID", fmt::format("misfits-at-the-join-{}", getpid())},
                                               {"LOCKSTEP_SECRET", "a secret of the test"}};
      if (w == 1) environment["ATEN_CPU_CAPABILITY"] = "default";
      return environment;
    });
    const std::string of_chief = workers.expect(0, "is ").text.substr(3);
    const std::string other = workers.expect(1, "is ").text.substr(3);
    if (other == of_chief) GTEST_SKIP() << "both workers have '" << other << "' here";
    EXPECT_NE(of_chief.find("CPU capability"), std::string::npos) << of_chief;
    const std::string refused = workers.expect(1, "refused: ").text;
    for (const std::string& words :
         {fmt::format("worker 1 (process {}", workers.pid(1)), fmt::format("worker 0 (process {}", workers.pid(0)),
          other, of_chief, std::string("[LS-CLUSTER-DIFFERS]")}) {
      EXPECT_NE(refused.find(words), std::string::npos) << words << "\nin " << refused;
    }
  }
}

}  // namespace
}  // namespace lockstep
