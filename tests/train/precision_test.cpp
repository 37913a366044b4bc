// Fits that compute in bfloat16, what they cost, and updates that are too small for their weights.
#include <torch/optim/sgd.h>

#include <regex>

#include "lockstep/train/step/bfloat16_cost.h"
#include "tests/support/autocast.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

TEST(Precision, ComputesInBFloat16AsUnderAutocast) {
  std::string first;
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 2, 1}, {1, 2, 2}, {2, 2, 1}}) {
    const auto hand = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      for (const auto& batch : setting.train.epoch(0)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          set_autocast(true);
          const torch::Tensor mean = cross_entropy(setting.model(ctx)->forward(part.input), part);
          set_autocast(false);
          ctx.scale_loss(mean).backward();
          setting.optimizer.step(ctx);
        });
      }
      return digest_of(setting);
    });
    const auto fit = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer(strategy, setting.model, setting.optimizer,
                      {.loss = cross_entropy, .precision = Precision::kBFloat16});
      // Validations between steps leave no cast weights behind.
      trainer.fit(setting.train, {.epochs = 1, .validation = setting.validation, .validate_every_steps = 1});
      return digest_of(setting);
    });
    EXPECT_EQ(fit, hand) << one;
    if (first.empty()) first = fit.front();
    EXPECT_EQ(fit.front(), first) << one << ": other bits than on one lane";
    const auto float32 = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = cross_entropy});
      trainer.fit(setting.train, {.epochs = 1});
      return digest_of(setting);
    });
    EXPECT_NE(fit.front(), float32.front()) << "autocast has changed nothing";
  }
}

TEST(Precision, KeepsWeightsGradientsAndSlotsInFloat32) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer(strategy, setting.model, setting.optimizer,
                    {.loss = cross_entropy, .precision = Precision::kBFloat16});
    int64_t seen = 0;
    const auto look = callbacks::each_step([&](Trainer& of, const Logs&) {
      for (const auto& [name, gradient] : of.gradients()) {
        EXPECT_EQ(gradient.scalar_type(), torch::kFloat) << name;
        ++seen;
      }
      of.keep_gradients();
    });
    trainer.fit(setting.train, {.epochs = 1, .callbacks = {look}});
    EXPECT_EQ(seen, 3 * 4) << "of three steps, the two weights and the two biases";
    const auto state = setting.optimizer.state();
    EXPECT_FALSE(state.empty());
    for (const auto& [name, value] : state) {
      EXPECT_NE(value.scalar_type(), torch::kBFloat16) << name;
    }
    for (const auto& [name, value] : setting.model.state()) EXPECT_EQ(value.scalar_type(), torch::kFloat) << name;
    return 0;
  });
}

namespace {

/// Fits a layer whose weights have the type, and gives what the findings about lost updates say.
std::vector<std::string> lost_updates(torch::Dtype type, double rate, int64_t steps = 20) {
  std::vector<std::string> texts;
  run_workers({2, 2, 1}, [&](Strategy& strategy) {
    const auto model = strategy.make_module([&] {
      torch::nn::Linear layer(6, 3);
      layer->to(type);
      return layer;
    });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(rate));
    const auto data = strategy.distribute(data::from_tensors(inputs(40), classes(40)), {.global_batch = 4});
    Trainer trainer(
        strategy, model, optimizer,
        {.loss =
             [](const torch::Tensor& output, const Batch& batch) {
               return torch::nn::functional::cross_entropy(output.to(torch::kFloat), batch.target);
             },
         .forward = [&](auto& module, const Batch& batch) { return module->forward(batch.input.to(type)); }});
    trainer.fit(data, {.steps = steps});
    for (const Finding& finding : strategy.findings()) {
      if (finding.code != "LS-UPDATES-ROUNDED") continue;
      EXPECT_TRUE(strategy.is_chief()) << "one worker says it for all";
      texts.push_back(finding.text);
    }
    return 0;
  });
  return texts;
}

}  // namespace

TEST(Precision, UpdatesThatAreRoundedAwayAreAFinding) {
  const auto of_half = lost_updates(torch::kBFloat16, 1e-4);
  ASSERT_EQ(of_half.size(), 1u);
  for (const char* const part : {"model.weight", "BFloat16", "Precision::kBFloat16", "step 7"}) {
    EXPECT_TRUE(has_value(of_half.front(), part)) << of_half.front();
  }
  const auto of_small_rate = lost_updates(torch::kFloat, 1e-9);
  ASSERT_EQ(of_small_rate.size(), 1u);
  EXPECT_TRUE(has_value(of_small_rate.front(), "Float")) << of_small_rate.front();
}

TEST(Precision, UpdatesThatChangeTheWeightsAreNone) {
  EXPECT_TRUE(lost_updates(torch::kBFloat16, 1).empty());
  EXPECT_TRUE(lost_updates(torch::kFloat, 1e-3).empty());
  EXPECT_TRUE(lost_updates(torch::kFloat, 0).empty()) << "a rate of 0 is meant";
  EXPECT_TRUE(lost_updates(torch::kBFloat16, 1e-4, 7).empty()) << "it has not looked yet";
}

TEST(Precision, SaysWhatItCostsWithoutInstructions) {
  EXPECT_GT(internal::measured_bfloat16_cost(), 0);
  const std::string text = internal::bfloat16_cost_text();
  EXPECT_TRUE(std::regex_search(text, std::regex("took [0-9]+\\.[0-9] times as long"))) << text;
}

}  // namespace lockstep::testing
