// Tables of rows in scheduled steps.
#include "lockstep/server/embedding.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using torch::Tensor;

class Tables : public ::testing::TestWithParam<std::optional<int64_t>> {};

TEST_P(Tables, RowsLearnAsThoseOfADenseVariable) {
  // Each step names each row once, so that Adagrad by rows and Adagrad of the whole are the same.
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "rows", .rows = 5, .dim = 3, .initial = 0.5});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::AdagradOptions(0.1));
  const Variable dense = strategy.make_variable(torch::full({5, 3}, 0.5), {.name = "dense"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector{dense}, torch::optim::AdagradOptions(0.1));
  const Tensor ids = torch::tensor({3, 0, 4, 1, 2});
  const Tensor order = ids.argsort();
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Tensor factors = torch::arange(15).to(torch::kFloat).view({5, 3}).add(static_cast<double>(ctx.step() / 2));
    const Tensor mine = table.look_up(ctx, ids).index_select(0, order);
    ((mine.pow(2) * factors).sum() + (dense.value(ctx).pow(2) * factors).sum()).backward();
    ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 8; ++i) {
      coordinator.schedule(step);
      if (GetParam() != 0) coordinator.join();  // so that each step sees all before it
    }
  });
  EXPECT_TRUE(torch::equal(table.read(torch::arange(5)), dense.read()));
  EXPECT_EQ(table.size(), 5);
}

TEST_P(Tables, ANormThatIsNaNIsNotClippedAway) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 1, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "rows", .rows = 5, .dim = 2});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Tensor mine = table.look_up(ctx, torch::arange(2));
    (mine * torch::tensor({1.0F, std::numeric_limits<float>::quiet_NaN()}).view({2, 1})).sum().backward();
    ctx.push({.clip_global_norm = 1.0, .loss_scaled_by_hand = true});
  });
  strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step); });
  EXPECT_TRUE(table.read(torch::arange(2)).isnan().all().item<bool>()) << "as of every other optimizer";
}

TEST_P(Tables, LookUpsKeepNothingAndRepeatedRowsAddUp) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "rows", .dim = 2});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const Tensor ids = torch::tensor({7, -9, 7, 7}).view({2, 2});
  const auto look = strategy.step("look", [&](WorkerContext& ctx) { return table.look_up(ctx, ids).detach(); });
  const auto push = strategy.step("push", [&](WorkerContext& ctx) {
    const Tensor first = table.look_up(ctx, ids);
    const Tensor again = table.look_up(ctx, torch::tensor({7, 12}));
    (first.sum() + again.sum()).backward();
    ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    const Tensor before = coordinator.schedule(look).get();
    EXPECT_EQ(before.sizes(), (std::vector<int64_t>{2, 2, 2}));
    EXPECT_TRUE(torch::equal(before, table.read(ids)));
    EXPECT_EQ(table.size(), 0);
    coordinator.schedule(push);
    coordinator.join();
    EXPECT_EQ(table.size(), 3);
    const Tensor by = (before - coordinator.schedule(look).get()).view({4, 2});
    EXPECT_TRUE(torch::allclose(by[0], torch::full({2}, 4.0F)));
    EXPECT_TRUE(torch::allclose(by[1], torch::full({2}, 1.0F)));
  });
}

TEST_P(Tables, APartWithoutIdsIsPartOfTheGraph) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "rows", .dim = 2});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Tensor none = table.look_up(ctx, torch::empty({0, 3}, torch::kLong));
    EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 3, 2}));
    none.sum().backward();
    ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 3; ++i) coordinator.schedule(step);
  });
  EXPECT_EQ(table.size(), 0);
}

TEST_P(Tables, AnIdThatIsNoRowFailsTheStep) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "users", .rows = 4, .dim = 2});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const auto look = strategy.step("look", [&](WorkerContext& ctx) { table.look_up(ctx, torch::tensor({1, 4})); });
  strategy.coordinate([&](Coordinator& coordinator) {
    coordinator.schedule(look);
    const auto error = testing::error_from<ReplicaError>([&] { coordinator.join(); });
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-ROW-RANGE", {"'users'", "4"});
  });
}

TEST_P(Tables, AStepOverTheLimitDoesNotCount) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "users", .dim = 16, .limit_bytes = 400'000});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const auto push = strategy.step("push", [&](WorkerContext& ctx) {
    table.look_up(ctx, torch::arange(1000) + 1000 * ctx.step()).sum().backward();
    ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    const auto error = testing::error_from<ReplicaError>([&] {
      for (int i = 0; i < 40; ++i) {
        coordinator.schedule(push);
        coordinator.join();
      }
    });
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-TABLE-FULL", {"'users'"});
    EXPECT_EQ(table.size(), 1000 * coordinator.steps());
  });
}

TEST_P(Tables, RowsThatNoStepNamesAreForgotten) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Embedding table = strategy.make_embedding({.name = "users", .dim = 2, .evict_after = 8});
  const RowsOptimizer rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
  const auto push = strategy.step("push", [&](WorkerContext& ctx) {
    table.look_up(ctx, torch::tensor({ctx.step() < 2 ? 1 : 2})).sum().backward();
    ctx.push();
  });
  const Tensor first = table.read(torch::tensor({1}));
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 2; ++i) coordinator.schedule(push);
    coordinator.join();
    EXPECT_FALSE(torch::equal(table.read(torch::tensor({1})), first));
    for (int i = 0; i < 12; ++i) coordinator.schedule(push);
    coordinator.join();
    EXPECT_EQ(table.size(), 1);
    EXPECT_TRUE(torch::equal(table.read(torch::tensor({1})), first)) << "it is a new row when it comes again";
  });
}

INSTANTIATE_TEST_SUITE_P(Staleness, Tables, ::testing::Values(std::nullopt, 0, 2), [](const auto& one) {
  return one.param ? "Of" + std::to_string(*one.param) : std::string("Unbounded");
});

}  // namespace
}  // namespace lockstep
