// What goes wrong on one of several workers ends the step on all of them, in the same way, and says where it happened.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error_on_all;
using testing::expect_step_error_on_all;
using testing::PerWorker;
using testing::run_workers;
using testing::values_of;

TEST(Workers, FailTogetherWhereOneReplicaThrows) {
  const auto steps = run_workers({3, 6, 1}, [](Strategy& strategy) {
    const Variable variable =
        strategy.make_variable(torch::zeros({2}), {.name = "v", .aggregation = VariableAggregation::kSum});
    const auto step = [&](bool fails) {
      strategy.run([&](ReplicaContext& ctx) {
        variable.assign_add(ctx, torch::ones({2}));
        if (fails && ctx.replica_id() == 3) throw std::out_of_range("replica three is out of range");
        ctx.all_reduce(Reduction::kSum, torch::ones({2}));
      });
    };
    step(false);
    const auto error = testing::error_from<ReplicaError>([&] { step(true); });
    EXPECT_EQ(error.step(), 1);
    EXPECT_EQ(error.replica(), 3) << "on worker " << strategy.worker_index();
    EXPECT_EQ(error.failures().size(), 1u);
    if (strategy.worker_index() == 1) {
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    } else {
      testing::expect_error<PeerError>([&] { std::rethrow_if_nested(error); }, "LS-PEER-FAILED",
                                       {"worker 1", "replica 3", "step 1", "replica three is out of range"});
      const auto peer = testing::error_from<PeerError>([&] { std::rethrow_if_nested(error); });
      EXPECT_EQ(peer.failed().worker, 1);
      EXPECT_EQ(peer.failed().step, 1);
      EXPECT_EQ(peer.failed().process, getpid());
      EXPECT_EQ(peer.failed().noticed, PeerError::Noticed::kFailed);
      EXPECT_EQ(peer.failed().replica, 3);
    }
    EXPECT_EQ(variable.read()[0].item<float>(), 6);  // as the last completed run left it
    EXPECT_EQ(strategy.step(), 1);
    step(false);  // all of them can go on
    EXPECT_EQ(variable.read()[0].item<float>(), 12);
    return strategy.step();
  });
  EXPECT_EQ(steps, (PerWorker<int64_t>{2, 2, 2}));
}

TEST(Workers, FailTogetherWhereAReplicaThrowsAfterTheLastMeeting) {
  run_workers({2, 4, 2}, [](Strategy& strategy) {
    const auto error = testing::error_from<ReplicaError>([&] {
      strategy.run([&](ReplicaContext& ctx) {
        ctx.all_reduce(Reduction::kSum, torch::ones({2}));
        if (ctx.replica_id() == 0) throw std::runtime_error("too late to meet");
      });
    });
    EXPECT_TRUE(testing::has_value(error.what(), "too late to meet")) << error.what();
    if (strategy.worker_index() != 0) {
      testing::expect_error<PeerError>([&] { std::rethrow_if_nested(error); }, "LS-PEER-FAILED",
                                       {"worker 0", "replica 0", "step 0"});
    }
    EXPECT_EQ(strategy.step(), 0);
    return 0;
  });
}

TEST(Workers, ThatMeetInAnotherOrderAreNamedOnAllOfThem) {
  expect_step_error_on_all<UsageError>(
      {3, 6, 1},
      [](Strategy& strategy) {
        strategy.run([&](ReplicaContext& ctx) {
          ctx.all_reduce(Reduction::kSum, torch::ones({strategy.worker_index() == 2 ? 4 : 3}));
        });
      },
      "LS-WORKER-ORDER",
      {"workers 0 to 1", "all_reduce(sum, Float [3])", "worker 2", "all_reduce(sum, Float [4])", "step 0"});
}

TEST(Workers, ThatEndAStepWhereOthersMeetAreNamedOnAllOfThem) {
  expect_step_error_on_all<UsageError>({2, 4, 1},
                                       [](Strategy& strategy) {
                                         strategy.run([&](ReplicaContext& ctx) {
                                           if (strategy.worker_index() == 0) ctx.broadcast(0, torch::ones({3}));
                                         });
                                       },
                                       "LS-WORKER-ORDER",
                                       {"worker 0", "broadcast(from replica 0)", "worker 1", "step 0"});
}

TEST(Workers, ThatMakeOtherCallsOutsideOfStepsAreNamedOnAllOfThem) {
  expect_error_on_all<UsageError>({2, 4, 1},
                                  [](Strategy& strategy) {
                                    const auto values = values_of(strategy, torch::kFloat);
                                    if (strategy.worker_index() == 0) {
                                      strategy.reduce(Reduction::kSum, values);
                                    } else {
                                      strategy.gather(values, 0);
                                    }
                                  },
                                  "LS-WORKER-ORDER", {"worker 0", "Strategy::reduce", "worker 1", "Strategy::gather"});
}

TEST(Workers, LearnOfAnArgumentThatAnotherOneRefused) {
  run_workers({2, 4, 1}, [](Strategy& strategy) {
    const bool bad = strategy.worker_index() == 1;
    const auto values =
        strategy.per_replica([&](ReplicaId) { return torch::ones({2}).to(bad ? torch::kBool : torch::kFloat); });
    const auto reduce = [&] { strategy.reduce(Reduction::kSum, values); };
    if (bad) {
      testing::expect_error<UsageError>(reduce, "LS-DTYPE", {"sum", "Bool"});
    } else {
      testing::expect_error<PeerError>(reduce, "LS-PEER-FAILED", {"worker 1", "step 0", "Bool"});
    }
    return 0;
  });
}

TEST(Workers, NameTheReplicasWhoseValuesAreNotAlikeByTheirIds) {
  run_workers({2, 4, 1}, [](Strategy& strategy) {
    const auto values = strategy.per_replica([](ReplicaId r) { return torch::ones({r == 3 ? 5 : 2}); });
    const auto reduce = [&] { strategy.reduce(Reduction::kSum, values); };
    if (strategy.worker_index() == 1) {
      testing::expect_error<UsageError>(reduce, "LS-NOT-ALIKE", {"replica 2", "replica 3", "[5]"});
    } else {
      testing::expect_error<PeerError>(reduce, "LS-PEER-FAILED", {"worker 1", "replica 3"});
    }
    return 0;
  });
}

/// A step or call that fails on worker 1 with a UsageError, and on the others because of it.
template <class E>
void expect_own_error(const Strategy& strategy, const std::function<void()>& call, std::string_view code,
                      std::initializer_list<std::string_view> values) {
  if (strategy.worker_index() == 1) {
    testing::expect_error<E>(call, code, values);
  } else {
    testing::expect_error<PeerError>(call, "LS-PEER-FAILED", {"worker 1"});
  }
}

TEST(Workers, LearnThatReplicasOfAnotherOneFrozeOtherParameters) {
  run_workers({3, 6, 1}, [](Strategy& strategy) {
    const Variable u = strategy.make_variable(torch::ones({2}), {.name = "u"});
    const Variable v = strategy.make_variable(torch::ones({2}), {.name = "v"});
    const Optimizer optimizer = strategy.make_optimizer({u, v}, torch::optim::SGDOptions(1.0));
    const auto step = [&](ReplicaContext& ctx) {
      (u.value(ctx) + v.value(ctx)).sum().backward();
      optimizer.step(ctx);
    };
    const auto freezing = [&](ReplicaContext& ctx) {
      const bool freezes = ctx.replica_id() == 3;
      v.value(ctx).requires_grad_(!freezes);
      step(ctx);
    };
    const auto error = testing::error_from<ReplicaError>([&] { strategy.run(freezing); });
    expect_own_error<UsageError>(strategy, [&] { std::rethrow_if_nested(error); }, "LS-FROZEN-UNLIKE",
                                 {"variable 'v'", "replica 3", "replica 2"});
    EXPECT_EQ(strategy.step(), 0);
    strategy.run([&](ReplicaContext& ctx) {
      v.value(ctx).requires_grad_(true);
      step(ctx);
    });
    EXPECT_EQ(v.read()[0].item<float>(), -5);
    return 0;
  });
}

TEST(Workers, LearnThatComponentsOfAnotherOneHaveBecomeUnlike) {
  run_workers({3, 6, 1}, [](Strategy& strategy) {
    const Variable sums = strategy.make_variable(torch::ones({2}), {.name = "sums",
                                                                    .trainable = false,
                                                                    .synchronization = VariableSynchronization::kOnRead,
                                                                    .aggregation = VariableAggregation::kSum});
    const auto grow = [&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 3) sums.value(ctx).set_data(torch::ones({5}));
    };
    strategy.run(grow);
    expect_own_error<UsageError>(strategy, [&] { sums.read(); }, "LS-NOT-ALIKE",
                                 {"variable 'sums'", "replica 2", "replica 3", "[5]"});
    return 0;
  });
}

TEST(Workers, WhoseComponentsHaveOtherShapesAreNamedOnAllOfThem) {
  expect_error_on_all<UsageError>({2, 4, 1},
                                  [](Strategy& strategy) {
                                    const Variable sums = strategy.make_variable(
                                        torch::ones({2}), {.name = "sums",
                                                           .trainable = false,
                                                           .synchronization = VariableSynchronization::kOnRead,
                                                           .aggregation = VariableAggregation::kSum});
                                    strategy.run([&](ReplicaContext& ctx) {
                                      if (strategy.worker_index() == 1) sums.value(ctx).set_data(torch::ones({5}));
                                    });
                                    sums.read();
                                  },
                                  "LS-WORKER-ORDER", {"a read of 'sums'", "Float [2]", "Float [5]", "worker 1"});
}

/// Each replica trains its own parameters, which become their mean after every step, and every step is verified.
class Averaging final : public Strategy {
 public:
  Averaging(std::shared_ptr<World> world, int64_t replicas)
      : Strategy(StrategySetup{.name = "Averaging",
                               .topology = std::make_shared<HostTopology>(testing::lanes(1), replicas, false),
                               .synchronization = std::make_shared<AfterEachStep>(),
                               .world = std::move(world),
                               .verify_every = 1}) {}

 private:
  struct AfterEachStep final : Synchronization {
    std::string describe() const override { return "after each step"; }
    bool trains_locally(const NewVariable& variable) const override { return variable.name == "local"; }
    bool averages_after(int64_t) const override { return true; }
  };
};

TEST(Workers, AllFindAForeignWriteOfOneAtTheVerification) {
  ThreadWorkers workers(3, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 3; ++w) {
    threads.emplace_back([world = workers.world(w)]() mutable {
      Averaging strategy(std::move(world), 6);
      const Variable local = strategy.make_variable(torch::ones({2}), {.name = "local"});
      const Variable equal = strategy.make_variable(torch::ones({2}), {.name = "equal"});
      const Optimizer optimizer = strategy.make_optimizer({equal}, torch::optim::SGDOptions(1.0));
      const auto step = [&](bool writes) {
        strategy.run([&](ReplicaContext& ctx) {
          equal.value(ctx).sum().backward();
          optimizer.step(ctx);
          if (writes && ctx.replica_id() == 3) equal.value(ctx).data_ptr<float>()[1] = 7;
        });
      };
      step(false);
      const auto error = testing::error_from<ReplicaError>([&] { step(true); });
      // The workers share one copy of the variable, so each of them finds the write.
      testing::expect_error<DivergenceError>([&] { std::rethrow_if_nested(error); }, "LS-FOREIGN-WRITE",
                                             {"variable 'equal'"});
      EXPECT_EQ(strategy.step(), 1);
      EXPECT_EQ(local.read()[0].item<float>(), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Workers, LearnThatAnotherOnesVerificationFailed) {
  ThreadWorkers workers(3, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 3; ++w) {
    threads.emplace_back([world = workers.world(w)]() mutable {
      Averaging strategy(std::move(world), 6);
      const Variable equal = strategy.make_variable(torch::ones({2}), {.name = "equal"});  // no optimizer has it
      const auto step = [&](bool writes) {
        strategy.run([&](ReplicaContext& ctx) {
          if (writes && ctx.replica_id() == 3) equal.value(ctx).data_ptr<float>()[1] = 7;
        });
      };
      step(false);
      const auto error = testing::error_from<ReplicaError>([&] { step(true); });
      expect_own_error<DivergenceError>(strategy, [&] { std::rethrow_if_nested(error); }, "LS-FOREIGN-WRITE",
                                        {"variable 'equal'"});
      EXPECT_EQ(strategy.step(), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Workers, ThatEndEarlyAreNamedToTheOthers) {
  run_workers({3, 3, 1}, [](Strategy& strategy) {
    if (strategy.worker_index() == 1) return 0;
    const auto step = [](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, torch::ones({1})); };
    const auto error = testing::error_from<PeerError>([&] { strategy.run(step); });
    EXPECT_EQ(error.code(), "LS-PEER-LOST");
    EXPECT_EQ(error.failed().worker, 1);
    EXPECT_EQ(error.failed().noticed, PeerError::Noticed::kLeft);
    EXPECT_TRUE(testing::has_value(error.what(), "worker 1 left the run")) << error.what();
    return 0;
  });
}

TEST(Workers, NeedAReplicaEach) {
  run_workers({1, 1, 1}, [](Strategy&) { return 0; });
  EXPECT_THROW(run_workers({3, 2, 1}, [](Strategy&) { return 0; }), UsageError);
}

}  // namespace
}  // namespace lockstep
