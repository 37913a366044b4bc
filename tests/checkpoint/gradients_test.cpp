// Gradients that wait for a step, in saves and restores.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using GradientsTest = testing::ScratchFolder;

struct Program {
  MirroredStrategy strategy{{.devices = testing::lanes(2), .replicas = 2, .seed = 4}};
  Replicated<torch::nn::Linear> model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  Optimizer sgd = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));

  void backward(bool steps, bool drops = false) {
    strategy.run([&](ReplicaContext& ctx) {
      if (drops) sgd.zero_grad(ctx);
      const auto input = torch::full({4, 3}, 1 + static_cast<float>(ctx.replica_id().value()));
      ctx.scale_loss(model(ctx)->forward(input).square().mean(), 4, 8).backward();
      if (steps) sgd.step(ctx);
    });
  }
  int64_t gradients() {
    const auto counts = strategy.run([&](ReplicaContext& ctx) {
      int64_t count = 0;
      for (const at::Tensor& one : model(ctx)->parameters()) count += one.grad().defined() ? 1 : 0;
      return count;
    });
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    return sum;
  }
  std::string digest() {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (const auto& [name, value] : model.state()) named.emplace_back(name, value);
    return sha256_of(named);
  }
};

TEST_F(GradientsTest, AreNamedOnceWhereASaveLeavesThemOut) {
  Program program;
  const Checkpoint checkpoint(program.strategy);
  program.backward(true);
  checkpoint.save(path("a"));
  EXPECT_TRUE(program.strategy.findings().empty());
  program.backward(false);
  checkpoint.save(path("b"));
  const std::vector<Finding> findings = program.strategy.findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings.front().code, "LS-GRADIENT-NOT-SAVED");
  EXPECT_NE(findings.front().text.find("weight"), std::string::npos) << findings.front().text;
  EXPECT_EQ(program.gradients(), 4) << "a save changes nothing";
}

/// The backward of a generator's loss leaves gradients in the discriminator, after its step.
TEST_F(GradientsTest, ThatTheNextStepBeginsByDroppingAreNotNamed) {
  Program program;
  for (int step = 0; step < 2; ++step) {
    program.backward(true, /*drops=*/true);
    program.backward(false);
    EXPECT_EQ(program.gradients(), 4);
    Checkpoint(program.strategy).save(path("step" + std::to_string(step)));
  }
  EXPECT_TRUE(program.strategy.findings().empty());
}

TEST_F(GradientsTest, BetweenMicroBatchesAreNamedWhateverWasDroppedBefore) {
  Program program;
  program.backward(true, /*drops=*/true);
  program.backward(false, /*drops=*/true);  // the first of two micro-batches
  Checkpoint(program.strategy).save(path("a"));
  ASSERT_EQ(program.strategy.findings().size(), 1U);
  EXPECT_EQ(program.strategy.findings().front().code, "LS-GRADIENT-NOT-SAVED");
}

TEST_F(GradientsTest, OfTheValuesOfBeforeAreDroppedByARestore) {
  Program whole;
  whole.backward(true);
  Checkpoint(whole.strategy).save(path("a"));
  whole.backward(true);

  Program other;
  other.backward(false);
  EXPECT_EQ(other.gradients(), 4);
  const Checkpoint checkpoint(other.strategy);
  EXPECT_THROW(checkpoint.restore(path("none")), DataError);
  EXPECT_EQ(other.gradients(), 4) << "a restore that fails changes nothing";
  checkpoint.restore(path("a"), {.only = {"*bias"}});
  EXPECT_EQ(other.gradients(), 2) << "the weight has its value, and its gradients";
  checkpoint.restore(path("a"));
  EXPECT_EQ(other.gradients(), 0);
  other.backward(true);
  EXPECT_EQ(other.digest(), whole.digest());
}

}  // namespace
}  // namespace lockstep
