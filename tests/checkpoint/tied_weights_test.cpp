// Tensors that a module has under several names, in checkpoints; and what a restore of a part leaves as it was.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Model = Replicated<std::shared_ptr<torch::nn::Module>>;
using Texts = std::vector<std::string>;

/// Two layers, "first" and "second", with one weight or with two.
std::shared_ptr<torch::nn::Module> two_layers(const char* first, const char* second, bool is_tied) {
  auto net = std::make_shared<torch::nn::Module>("Net");
  auto a = std::make_shared<torch::nn::Module>("Layer");
  auto b = std::make_shared<torch::nn::Module>("Layer");
  const auto weight = a->register_parameter("weight", torch::rand({2, 2}));
  b->register_parameter("weight", is_tied ? weight : torch::rand({2, 2}));
  net->register_module(first, a);
  net->register_module(second, b);
  return net;
}

struct TiedProgram {
  explicit TiedProgram(bool is_tied, const char* first = "in", const char* second = "out", uint64_t seed = 1)
      : strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = seed}),
        model(strategy.make_module([=] { return two_layers(first, second, is_tied); })) {}
  MirroredStrategy strategy;
  Model model;
  Checkpoint checkpoint{strategy};
};

at::Tensor ones() { return torch::ones({2, 2}); }

class TiedWeights : public testing::ScratchFolder {};

TEST_F(TiedWeights, AreRestoredByAPatternOfEitherName) {
  TiedProgram saved(/*is_tied=*/true);
  saved.model.load({{"in.weight", ones()}});
  saved.checkpoint.save(path("c"));
  for (const char* pattern : {"model.in.*", "model.out.*", "*.out.weight"}) {
    TiedProgram run(/*is_tied=*/true);
    run.model.load({{"in.weight", torch::zeros({2, 2})}});
    const RestoreInfo info = run.checkpoint.restore(path("c"), {.only = {pattern}});
    EXPECT_TRUE(run.model.state().at("out.weight").equal(ones())) << pattern;
    EXPECT_TRUE(info.missing.empty() && info.unexpected.empty()) << pattern;
  }
  expect_error<UsageError>([&] { saved.checkpoint.restore(path("c"), {.only = {"model.other.*"}}); },
                           "LS-CHECKPOINT-MISFIT");
}

TEST_F(TiedWeights, AreRestoredWhereTheirOtherNameComesFirst) {
  TiedProgram saved(/*is_tied=*/true);
  saved.model.load({{"in.weight", ones()}});
  saved.checkpoint.save(path("c"));
  for (const bool allow : {false, true}) {
    TiedProgram turned(/*is_tied=*/true, "out", "in");
    ASSERT_EQ(turned.model.variables()[0].name(), "model.out.weight");
    turned.checkpoint.restore(path("c"), {.allow_unexpected = allow});
    EXPECT_TRUE(turned.model.state().at("in.weight").equal(ones()));
    TiedProgram apart(/*is_tied=*/false);
    apart.checkpoint.restore(path("c"), {.allow_unexpected = allow});
    EXPECT_TRUE(apart.model.state().at("in.weight").equal(ones()));
    EXPECT_TRUE(apart.model.state().at("out.weight").equal(ones()));
  }
}

TEST_F(TiedWeights, OfTwoThatDifferAreRefusedByBothNames) {
  TiedProgram apart(/*is_tied=*/false);
  apart.model.load({{"in.weight", ones()}, {"out.weight", ones()}});
  apart.checkpoint.save(path("equal"));
  apart.model.load({{"in.weight", ones()}, {"out.weight", torch::zeros({2, 2})}});
  apart.checkpoint.save(path("differ"));
  TiedProgram run(/*is_tied=*/true);
  run.checkpoint.restore(path("equal"));
  EXPECT_TRUE(run.model.state().at("in.weight").equal(ones()));
  expect_error<UsageError>([&] { run.checkpoint.restore(path("differ")); }, "LS-CHECKPOINT-MISFIT",
                           {"'model.in.weight'", "'model.out.weight'"});
}

TEST_F(TiedWeights, AManifestSaysTheirNames) {
  TiedProgram saved(/*is_tied=*/true);
  saved.checkpoint.save(path("c"));
  const auto manifest = internal::read_manifest(internal::host_files(), path("c"));
  EXPECT_EQ(manifest.run.other_names, (std::map<std::string, std::string>{{"model.out.weight", "model.in.weight"}}));
  TiedProgram apart(/*is_tied=*/false);
  apart.checkpoint.save(path("d"));
  EXPECT_TRUE(internal::read_manifest(internal::host_files(), path("d")).run.other_names.empty());
}

class PartialRestore : public testing::ScratchFolder {};

TEST_F(PartialRestore, SaysWhichAveragesAndSlotsItLeftOld) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) warnings.emplace_back(line);
  });
  const struct Quiet {
    ~Quiet() { set_log_sink({}); }
  } quiet;
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = 1});
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
  const auto average = strategy.make_moving_average(model);
  const Checkpoint checkpoint(strategy);
  checkpoint.save(path("c"));
  const auto sorted = [](Texts names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_EQ(checkpoint.restore(path("c"), {.only = {"model.weight"}}).left_old, Texts{"model.weight/average"})
      << "slots that no update has used are as they should be";
  strategy.run([&](ReplicaContext& ctx) {
    for (auto& parameter : model(ctx)->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
    optimizer.step(ctx);
    average.update(ctx);
  });
  warnings.clear();
  const Texts old{"model.weight/average", "model.weight/exp_avg", "model.weight/exp_avg_sq"};
  EXPECT_EQ(sorted(checkpoint.restore(path("c"), {.only = {"model.weight"}}).left_old), old);
  ASSERT_EQ(warnings.size(), 1u);
  for (const std::string& name : old) EXPECT_NE(warnings[0].find(name), std::string::npos) << warnings[0];
  warnings.clear();
  EXPECT_TRUE(checkpoint.restore(path("c"), {.only = {"model.weight*"}}).left_old.empty());
  EXPECT_TRUE(checkpoint.restore(path("c")).left_old.empty());
  EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace lockstep
