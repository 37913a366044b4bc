// What is said of buffers that replicas move apart, and whether an evaluation then computes what an exported module
// does.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"
#include "tests/variable/moved_buffers.h"

namespace lockstep::moved_buffers {
namespace {

using testing::lanes;
using testing::run_workers;
using testing::WorkersCase;

/// Where replicas are, in one process on one or two lanes, or on two workers.
class MovedBuffers : public ::testing::TestWithParam<WorkersCase> {};

INSTANTIATE_TEST_SUITE_P(Places, MovedBuffers,
                         ::testing::Values(WorkersCase{.workers = 1, .replicas = 3},
                                           WorkersCase{.workers = 1, .replicas = 4, .lanes = 2},
                                           WorkersCase{.workers = 2, .replicas = 3},
                                           WorkersCase{.workers = 2, .replicas = 2}));

TEST_P(MovedBuffers, LayersWhoseStatisticsComeApartAreToldOnceWithTheirName) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] {
      return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                                   torch::nn::BatchNorm1d(6), torch::nn::Linear(6, 1));
    });
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    for (int64_t step = 0; step < 9; ++step) train_step(strategy, model, optimizer, step);
    const std::vector<Finding> findings = strategy.findings();
    EXPECT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings.at(0).code, "LS-BUFFERS-DIFFER");
    EXPECT_EQ(findings.at(0).step, 0);
    for (const char* part : {"module 'model'", "layer '1'", "torch::nn::BatchNorm1d", "1 other layer", "SyncBatchNorm",
                             "convert_batch_norm", "ModuleOptions::buffers", "replica 1"}) {
      EXPECT_NE(findings.at(0).text.find(part), std::string::npos) << part << " in: " << findings.at(0).text;
    }
    return 0;
  });
}

TEST_P(MovedBuffers, ABufferOfTheUsersOwnThatComesApartIsToldOnce) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Net(); });
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    for (int64_t step = 0; step < 5; ++step) train_step(strategy, model, optimizer, step);
    const std::vector<Finding> findings = strategy.findings();
    EXPECT_EQ(findings.size(), 2U) << "one for batch normalisation, one for the others";
    EXPECT_NE(findings.at(0).text.find("layer 'net.1'"), std::string::npos) << findings.at(0).text;
    EXPECT_NE(findings.at(1).text.find("'codes' of layer 'codes'"), std::string::npos) << findings.at(1).text;
    return 0;
  });
}

TEST_P(MovedBuffers, NothingIsToldWhereReplicasMoveThemAlikeOrTheChoiceWasMade) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto chosen = strategy.make_module([] { return Net(); }, {.name = "chosen", .buffers = Buffers::kMean});
    const auto synced = strategy.make_module([] { return convert_batch_norm(normed()); }, {.name = "synced"});
    const auto frozen = strategy.make_module(
        [] {
          auto net = normed();
          net->ptr(1)->eval();
          return net;
        },
        {.name = "frozen"});
    const auto alike = strategy.make_module([] { return normed(); }, {.name = "alike"});
    auto optimizer = strategy.make_optimizer(chosen, torch::optim::SGDOptions(0.05));
    auto optimizer_of_synced = strategy.make_optimizer(synced, torch::optim::SGDOptions(0.05));
    auto optimizer_of_frozen = strategy.make_optimizer(frozen, torch::optim::SGDOptions(0.05));
    for (int64_t step = 0; step < 4; ++step) {
      train_step(strategy, chosen, optimizer, step);
      train_step(strategy, synced, optimizer_of_synced, step);
      train_step(strategy, frozen, optimizer_of_frozen, step);
      strategy.run([&](ReplicaContext& ctx) { alike(ctx)->forward(rows(step)); });
    }
    // Values of the program's own, which no run has moved.
    alike.variables().back().assign(strategy.per_replica([](ReplicaId r) { return torch::full({}, r.value()); }));
    for (int64_t step = 0; step < 20; ++step) strategy.run([](ReplicaContext& /*ctx*/) {});
    for (const Finding& one : strategy.findings()) ADD_FAILURE() << one.text;
    return 0;
  });
}

/// The loss of the whole batch by evaluate(), and of the exported module.
template <class M, class Loss>
void expect_equal_losses(Strategy& strategy, const Replicated<M>& model, const Tensor& x, const Tensor& y,
                         const Loss& loss) {
  const auto seen = strategy.evaluate(strategy.split(x, y), [&](ReplicaContext& ctx, const Batch& b) {
    return ctx.scale_loss(loss(model(ctx)->forward(b.input), b.target));
  });
  auto exported = model.export_module();
  exported->eval();
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(strategy.reduce(Reduction::kSum, seen).template item<double>(),
              loss(exported->forward(x), y).template item<double>(), 1e-5);
}

TEST(MovedBuffersIn, TheLossOfACodebookInEvaluationIsThatOfTheExportedModule) {
  for (const Buffers buffers : {Buffers::kAuto, Buffers::kMean, Buffers::kFirstReplica}) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 4, .seed = 1});
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = buffers});
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.01));
    torch::manual_seed(1);
    for (int i = 0; i < 60; ++i) {
      strategy.run(strategy.split(torch::randn({16, 4})), [&](ReplicaContext& ctx, const Batch& b) {
        ctx.scale_loss(model(ctx)->forward(b.input)).backward();
        optimizer.step(ctx);
      });
    }
    const Tensor x = torch::randn({64, 4});
    expect_equal_losses(strategy, model, x, x, [](const Tensor& loss, const Tensor& /*target*/) { return loss; });
    EXPECT_EQ(strategy.findings().size(), buffers == Buffers::kAuto ? 1U : 0U);
  }
}

TEST(MovedBuffersIn, TheLossOfBatchNormalisationInEvaluationIsThatOfTheExportedModule) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 4, .seed = 1});
  const auto model = strategy.make_module([] { return normed(); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
  torch::manual_seed(1);
  const Tensor x = torch::randn({64, 4}) * 3 + 1;
  const Tensor y = x.sum(1, true).sin();
  const auto loss = [](const Tensor& out, const Tensor& target) { return torch::mse_loss(out, target); };
  for (int i = 0; i < 60; ++i) {
    const Tensor chosen = torch::randperm(64).slice(0, 0, 8);
    strategy.run(strategy.split(x.index_select(0, chosen), y.index_select(0, chosen)),
                 [&](ReplicaContext& ctx, const Batch& b) {
                   ctx.scale_loss(loss(model(ctx)->forward(b.input), b.target)).backward();
                   optimizer.step(ctx);
                 });
  }
  expect_equal_losses(strategy, model, x, y, loss);
  ASSERT_EQ(strategy.findings().size(), 1U);
  EXPECT_NE(strategy.findings().front().text.find("SyncBatchNorm"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::moved_buffers
