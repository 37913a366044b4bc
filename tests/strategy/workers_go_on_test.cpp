// After an error on one worker, wherever it was, all workers go on with the same step: none is a call ahead of another.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::run_workers;
using torch::Tensor;

/// Makes steps in which one worker may fail, and others in which all must exchange the same step's values.
void expect_goes_on(const testing::WorkersCase& one, const std::function<void(ReplicaContext&, bool fails)>& body) {
  run_workers(one, [&](Strategy& strategy) {
    const Variable sum = strategy.make_variable(torch::zeros({}, torch::kDouble),
                                                {.name = "sum", .aggregation = VariableAggregation::kSum});
    int completed = 0;
    for (int batch = 0; batch < 6; ++batch) {
      const auto step = [&](ReplicaContext& ctx) {
        body(ctx, (batch == 1 || batch == 3) && strategy.worker_index() == 1);
        sum.assign(ctx, torch::full({}, std::pow(10.0, batch), torch::kDouble));
      };
      if (batch == 1 || batch == 3) {
        EXPECT_THROW(strategy.run(step), ReplicaError) << batch;
        continue;
      }
      strategy.run(step);
      EXPECT_EQ(sum.read().item<double>(), static_cast<double>(one.replicas) * std::pow(10.0, batch));
      EXPECT_EQ(strategy.step(), ++completed);
    }
    return 0;
  });
}

Tensor reduce(Strategy& strategy) {
  return strategy.reduce(Reduction::kSum, strategy.per_replica([](ReplicaId) { return torch::ones({2}); }));
}

TEST(WorkersGoOn, AfterAMergeFunctionThatThrows) {
  for (const int64_t workers : {2, 3}) {
    expect_goes_on({workers, 6, 1}, [](ReplicaContext& ctx, bool fails) {
      ctx.merge_call([&](Strategy& strategy) {
        if (fails) throw std::runtime_error("before the others exchange values");
        reduce(strategy);
      });
    });
    expect_goes_on({workers, 6, 1}, [](ReplicaContext& ctx, bool fails) {
      ctx.merge_call([&](Strategy& strategy) {
        reduce(strategy);
        if (fails) throw std::runtime_error("after the others have exchanged values");
      });
    });
  }
}

TEST(WorkersGoOn, AfterAMergeFunctionThatMakesOtherCalls) {
  expect_goes_on({2, 4, 1}, [](ReplicaContext& ctx, bool fails) {
    ctx.merge_call([&](Strategy& strategy) {
      reduce(strategy);
      if (fails) reduce(strategy);
    });
  });
  expect_goes_on({3, 6, 1}, [](ReplicaContext& ctx, bool fails) {
    ctx.merge_call([&](Strategy& strategy) {
      if (fails) {
        strategy.broadcast(0, torch::ones({2}));
      } else {
        reduce(strategy);
      }
    });
  });
}

TEST(WorkersGoOn, AfterAnErrorThatAMergeFunctionOrAStepCaught) {
  const auto refused = [](Strategy& strategy, bool fails) {
    const auto values =
        strategy.per_replica([&](ReplicaId) { return torch::ones({2}).to(fails ? torch::kBool : torch::kFloat); });
    strategy.reduce(Reduction::kSum, values);
  };
  expect_goes_on({2, 4, 1}, [&](ReplicaContext& ctx, bool fails) {
    ctx.merge_call([&](Strategy& strategy) {
      try {
        refused(strategy, fails);
      } catch (const Error&) {
      }
      reduce(strategy);
    });
  });
  expect_goes_on({2, 4, 1}, [&](ReplicaContext& ctx, bool fails) {
    try {
      ctx.merge_call([&](Strategy& strategy) { refused(strategy, fails); });
    } catch (const Error&) {
    }
  });
}

TEST(WorkersGoOn, AfterABroadcastOfNothing) {
  expect_goes_on({3, 6, 1}, [](ReplicaContext& ctx, bool fails) {
    ctx.broadcast(ctx.num_replicas() / 2, fails ? Tensor() : torch::ones({3}));
  });
}

TEST(WorkersGoOn, AfterAVariableThatOneWorkerCouldNotMake) {
  expect_goes_on({2, 4, 1}, [](ReplicaContext& ctx, bool fails) {
    const auto initial = [&] {
      if (fails) throw std::runtime_error("no file");
      return torch::ones({2});
    };
    // A name that was asked for in a step that failed is asked for again in the next one.
    const Variable made = ctx.make_variable("of step " + std::to_string(ctx.step()), initial, {});
    EXPECT_TRUE(torch::equal(made.value(ctx), torch::ones({2})));
  });
}

TEST(WorkersGoOn, AfterAnUpdateFromThatItsOwnerRefuses) {
  run_workers({2, 4, 1}, [](Strategy& strategy) {
    const Variable v = strategy.make_variable(torch::zeros({2}), {.name = "v"});
    const bool owner = strategy.worker_index() == 1;
    const auto refused = [&] { strategy.update_from(3, v, torch::ones({owner ? 5 : 2})); };
    if (owner) {
      testing::expect_error<UsageError>(refused, "LS-SHAPE", {"variable 'v'", "[5]"});
    } else {
      testing::expect_error<PeerError>(refused, "LS-PEER-FAILED", {"worker 1", "variable 'v'"});
    }
    strategy.update_from(3, v, torch::full({2}, owner ? 7.0 : 1.0));
    EXPECT_EQ(v.read()[0].item<float>(), 7);
    EXPECT_EQ(reduce(strategy)[0].item<float>(), 4);
    return 0;
  });
}

/// A reducer of a user's own, which fails on one worker.
class FailingReducer final : public Reducer {
 public:
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    if (fails) throw std::runtime_error("no room");
    return tree_.reduce(reduction, values);
  }
  std::string describe() const override { return "may fail"; }
  static thread_local bool fails;

 private:
  TreeReducer tree_;
};
thread_local bool FailingReducer::fails = false;

TEST(WorkersGoOn, AfterAReducerThatThrowsOnOneWorker) {
  run_workers(
      {2, 2, 1},
      [](Strategy& strategy) {
        for (int batch = 0; batch < 5; ++batch) {
          FailingReducer::fails = batch == 1 && strategy.worker_index() == 1;
          const auto step = [&](ReplicaContext& ctx) {
            const auto value = torch::full({2}, std::pow(10.0, batch), torch::kDouble);
            return ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{value, value * 2});
          };
          if (batch == 1) {
            EXPECT_THROW(strategy.run(step), ReplicaError);
          } else {
            const auto sums = strategy.run(step);
            for (const auto& one : sums) EXPECT_EQ(one[1][0].item<double>(), 4 * std::pow(10.0, batch));
          }
        }
        return 0;
      },
      std::make_shared<FailingReducer>());
}

TEST(WorkersGoOn, AfterAGradientOfLocalTrainingThatIsNotFinite) {
  struct Locally final : Synchronization {
    std::string describe() const override { return "locally"; }
    bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
    bool averages_after(int64_t) const override { return false; }
  };
  struct Local final : Strategy {
    explicit Local(std::shared_ptr<World> world)
        : Strategy(StrategySetup{.name = "Local",
                                 .topology = std::make_shared<HostTopology>(testing::lanes(1), 2, false),
                                 .synchronization = std::make_shared<Locally>(),
                                 .world = std::move(world)}) {}
  };
  ThreadWorkers workers(2, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 2; ++w) {
    threads.emplace_back([world = workers.world(w)]() mutable {
      Local strategy(std::move(world));
      const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
      const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
      const auto step = [&](double factor) {
        strategy.run([&](ReplicaContext& ctx) {
          model(ctx)->forward(torch::full({1, 2}, ctx.replica_id() == 0 ? factor : 1.0)).sum().backward();
          optimizer.step(ctx, {.check_finite = true});
        });
      };
      const auto weight = [&] { return model.variables()[0].components().begin()->clone(); };
      const Tensor before = weight();
      EXPECT_THROW(step(std::numeric_limits<double>::quiet_NaN()), ReplicaError);
      EXPECT_TRUE(torch::equal(weight(), before));
      step(1);
      EXPECT_EQ(optimizer.state().at(model.variables()[0].name() + "/step").item<int64_t>(), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
