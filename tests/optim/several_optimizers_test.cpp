// Two networks with an optimizer each, as in a GAN, and groups with their own options.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <limits>

#include "lockstep/testing/local_replicas.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using torch::Tensor;

nn::Sequential make_generator() { return nn::Sequential(nn::Linear(2, 5), nn::Tanh(), nn::Linear(5, 3)); }
nn::Sequential make_discriminator() { return nn::Sequential(nn::Linear(3, 6), nn::Tanh(), nn::Linear(6, 1)); }

/// The mean loss of scores that should be all `target`.
Tensor loss_against(const Tensor& scores, double target) {
  return nn::functional::binary_cross_entropy_with_logits(scores, torch::full_like(scores, target));
}
Tensor discriminator_loss(nn::Sequential& generator, nn::Sequential& discriminator, const Tensor& noise,
                          const Tensor& real) {
  const Tensor fake = generator->forward(noise).detach();
  return loss_against(discriminator->forward(real), 1) + loss_against(discriminator->forward(fake), 0);
}
Tensor generator_loss(nn::Sequential& generator, nn::Sequential& discriminator, const Tensor& noise) {
  return loss_against(discriminator->forward(generator->forward(noise)), 1);
}

const optim::SGDOptions kGeneratorOptions = optim::SGDOptions(0.2);
const optim::SGDOptions kDiscriminatorOptions = optim::SGDOptions(0.1).momentum(0.9);

/// Noise and real samples.
Dataset make_samples() {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  return data::from_tensors(torch::randn({36, 2}, generator), torch::randn({36, 3}, generator) + 1);
}

/// Trains a GAN; its last batches are short, and with 4 replicas one has an empty part.
struct Gan {
  Gan(Strategy& strategy, bool generator_first)
      : strategy_(strategy),
        generator_first_(generator_first),
        generator(strategy.make_module(make_generator, {.name = "generator"})),
        discriminator(strategy.make_module(make_discriminator, {.name = "discriminator"})),
        for_generator(strategy.make_optimizer(generator, kGeneratorOptions)),
        for_discriminator(strategy.make_optimizer(discriminator, kDiscriminatorOptions)) {}

  void train(const std::function<void()>& observe) {
    const auto data = strategy_.distribute(make_samples(), {.global_batch = 11});
    observe();
    for (const auto& batch : data.epoch(0)) {
      strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        if (generator_first_) step_generator(ctx, part);
        step_discriminator(ctx, part);
        if (!generator_first_) step_generator(ctx, part);
      });
      observe();
    }
  }
  void step_discriminator(ReplicaContext& ctx, const Batch& part) const {
    for_discriminator.zero_grad(ctx);  // what the generator's loss left there
    ctx.scale_loss(discriminator_loss(generator(ctx), discriminator(ctx), part.input, part.target)).backward();
    for_discriminator.step(ctx);
  }
  void step_generator(ReplicaContext& ctx, const Batch& part) const {
    ctx.scale_loss(generator_loss(generator(ctx), discriminator(ctx), part.input)).backward();
    for_generator.step(ctx);
  }

  Strategy& strategy_;
  const bool generator_first_;
  Replicated<nn::Sequential> generator;
  Replicated<nn::Sequential> discriminator;
  Optimizer for_generator;
  Optimizer for_discriminator;
};

class GanOn : public ::testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  int64_t replicas() const { return std::get<0>(GetParam()); }
  bool generator_first() const { return std::get<1>(GetParam()); }
};

TEST_P(GanOn, IsOneDevicesGanOnAnyLanes) {
  testing::expect_same_as_one_device(
      [&](Strategy& strategy, const auto& observe) { Gan(strategy, generator_first()).train(observe); },
      {.replicas = replicas()});
}

TEST_P(GanOn, IsStockLibTorchsGanOnTheWholeBatch) {
  testing::LocalReplicas strategy({.replicas = replicas(), .lanes = replicas() == 4 ? 2 : 1, .seed = 3});
  Gan gan(strategy, generator_first());
  nn::Sequential generator = gan.generator.export_module();
  nn::Sequential discriminator = gan.discriminator.export_module();
  optim::SGD for_generator(generator->parameters(), kGeneratorOptions);
  optim::SGD for_discriminator(discriminator->parameters(), kDiscriminatorOptions);
  const auto step_discriminator = [&](const Tensor& noise, const Tensor& real) {
    for_discriminator.zero_grad();
    discriminator_loss(generator, discriminator, noise, real).backward();
    for_discriminator.step();
  };
  const auto step_generator = [&](const Tensor& noise) {
    for_generator.zero_grad();
    generator_loss(generator, discriminator, noise).backward();
    for_generator.step();
  };
  const auto data = strategy.distribute(make_samples(), {.global_batch = 11});
  for (const auto& batch : data.epoch(0)) {
    const Tensor noise = strategy.gather(strategy.per_replica([&](ReplicaId r) { return batch[r].input; }));
    const Tensor real = strategy.gather(strategy.per_replica([&](ReplicaId r) { return batch[r].target; }));
    if (generator_first()) step_generator(noise);
    step_discriminator(noise, real);
    if (!generator_first()) step_generator(noise);
  }
  gan.train([] {});
  const auto expect_close = [](const std::map<std::string, Tensor>& state, const nn::Sequential& stock) {
    for (const auto& item : stock->named_parameters()) {
      EXPECT_TRUE(torch::allclose(state.at(item.key()), item.value().detach(), 1e-4, 1e-6)) << item.key();
    }
  };
  expect_close(gan.generator.state(), generator);
  expect_close(gan.discriminator.state(), discriminator);
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndOrders, GanOn, ::testing::Combine(::testing::Values(1, 3, 4), ::testing::Bool()));

class SeveralOptimizers : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  static bool has_gradients(nn::Sequential& module) {
    bool any = false;
    for (const Tensor& parameter : module->parameters()) any = any || parameter.grad().defined();
    return any;
  }
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  Gan gan_{*strategy_, false};
  const Tensor noise_ = torch::randn({4, 2}, at::make_generator<at::CPUGeneratorImpl>(1));
  const Tensor real_ = torch::randn({4, 3}, at::make_generator<at::CPUGeneratorImpl>(2));
};

TEST_P(SeveralOptimizers, ADetachedLossDoesNotReachTheOtherNetwork) {
  const auto before = gan_.generator.state();
  strategy_->run([&](ReplicaContext& ctx) {
    discriminator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_, real_).backward();
    EXPECT_FALSE(has_gradients(gan_.generator(ctx)));
    EXPECT_TRUE(gan_.for_discriminator.step(ctx).applied);
    EXPECT_FALSE(gan_.for_generator.step(ctx).applied);
  });
  for (const auto& [name, value] : gan_.generator.state()) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
}

TEST_P(SeveralOptimizers, AStepConsumesTheGradientsOfItsOwnVariablesAlone) {
  strategy_->run([&](ReplicaContext& ctx) {
    generator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_).backward();
    gan_.for_generator.step(ctx);
    EXPECT_FALSE(has_gradients(gan_.generator(ctx)));
    EXPECT_TRUE(has_gradients(gan_.discriminator(ctx))) << "the loss went through it";
  });
}

TEST_P(SeveralOptimizers, ZeroGradLetsGoOfWhatAnotherLossLeft) {
  // Twice the same step of the discriminator; once there is a backward of the generator's loss before it.
  const auto start = gan_.discriminator.state();
  const auto step = [&](bool generator_before) {
    gan_.discriminator.load(start);
    strategy_->run([&](ReplicaContext& ctx) {
      if (generator_before) generator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_).backward();
      gan_.for_discriminator.zero_grad(ctx);
      EXPECT_FALSE(has_gradients(gan_.discriminator(ctx)));
      EXPECT_EQ(has_gradients(gan_.generator(ctx)), generator_before) << "the other optimizer's";
      discriminator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_, real_).backward();
      gan_.for_discriminator.step(ctx);
      gan_.for_generator.zero_grad(ctx);
    });
    return gan_.discriminator.state();
  };
  auto slots = gan_.for_discriminator.state();
  const auto alone = step(false);
  gan_.for_discriminator.load(slots);
  const auto after_another = step(true);
  for (const auto& [name, value] : alone) EXPECT_TRUE(torch::equal(value, after_another.at(name))) << name;
}

TEST_P(SeveralOptimizers, ZeroGradForgetsTheWeightOfLossesBeforeIt) {
  const Variable v = strategy_->make_variable(torch::ones({3}), {.name = "v"});
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  strategy_->run([&](ReplicaContext& ctx) {
    ctx.scale_loss(v.value(ctx).sum(), 1, 1).backward();
    optimizer.zero_grad(ctx);
    ctx.scale_loss(v.value(ctx).sum(), 0, 1).backward();
    v.value(ctx).mutable_grad() = torch::full({3}, std::numeric_limits<float>::quiet_NaN());
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::equal(v.read(), torch::ones({3}))) << "a replica of weight 0 counts as zero";
}

TEST_P(SeveralOptimizers, AFrozenNetworkIsGoneThroughWithoutGradients) {
  const auto freeze = [&](ReplicaContext& ctx, bool frozen) {
    for (Tensor& parameter : gan_.discriminator(ctx)->parameters()) parameter.requires_grad_(!frozen);
  };
  strategy_->run([&](ReplicaContext& ctx) {
    freeze(ctx, true);
    generator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_).backward();
    EXPECT_FALSE(has_gradients(gan_.discriminator(ctx)));
    EXPECT_TRUE(gan_.for_generator.step(ctx).applied);
    freeze(ctx, false);
    discriminator_loss(gan_.generator(ctx), gan_.discriminator(ctx), noise_, real_).backward();
    EXPECT_TRUE(gan_.for_discriminator.step(ctx).applied);
  });
}

TEST_P(SeveralOptimizers, GroupsHaveTheirOwnOptionsAsAWhole) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  const auto decayed = optim::SGDOptions(0.05).weight_decay(0.3);
  const Variable a = strategy_->make_variable(torch::full({5}, 2.), {.name = "a"});
  const Variable b = strategy_->make_variable(torch::full({3}, 3.), {.name = "b"});
  using Group = ParameterGroup<optim::SGDOptions>;
  const auto optimizer = strategy_->make_optimizer(std::vector<Group>{{{a}, decayed}, {{b}}}, options);

  Tensor stock_a = torch::full({5}, 2.).requires_grad_();
  Tensor stock_b = torch::full({3}, 3.).requires_grad_();
  optim::SGD first({stock_a}, decayed);  // two optimizers: later LibTorchs merge a group's options with the others
  optim::SGD second({stock_b}, options);
  const auto loss = [](const Tensor& x, const Tensor& y) { return x.pow(2).sum() + y.sin().sum(); };
  for (int step = 0; step < 5; ++step) {
    strategy_->run([&](ReplicaContext& ctx) {
      ctx.scale_loss(loss(a.value(ctx), b.value(ctx)), 1, ctx.num_replicas()).backward();
      optimizer.step(ctx);
    });
    first.zero_grad();
    second.zero_grad();
    loss(stock_a, stock_b).backward();
    first.step();
    second.step();
  }
  EXPECT_TRUE(torch::allclose(a.read(), stock_a.detach(), 1e-5));
  EXPECT_TRUE(torch::allclose(b.read(), stock_b.detach(), 1e-5));
  std::vector<std::string> names;
  for (const Variable& slot : optimizer.slots()) names.push_back(slot.name());
  EXPECT_EQ(names, std::vector<std::string>{"b/momentum_buffer"});
}

TEST_P(SeveralOptimizers, ZeroGradOfAnotherStrategysOptimizerIsRefused) {
  testing::LocalReplicas other({.replicas = 2});
  const auto step = [&](ReplicaContext& ctx) { gan_.for_generator.zero_grad(ctx); };
  testing::expect_step_error<UsageError>([&] { other.run(step); }, "LS-OTHER-STRATEGY", {"optimizer.zero_grad"});
}

INSTANTIATE_TEST_SUITE_P(Strategies, SeveralOptimizers, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
