// Complex parameters: LibTorch's gradients, and updates of real and imaginary parts as numbers of their own.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/testing/local_replicas.h"
#include "tests/support/host_update.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::expect_step_error;
using testing::lanes;
using torch::Tensor;
namespace optim = torch::optim;
using Complex = c10::complex<double>;

/// w, of which the mean squared distance of w * x to (2 - 3i) * x is learned.
struct ComplexScale : torch::nn::Module {
  explicit ComplexScale(at::ScalarType type = torch::kComplexFloat)
      : w(register_parameter("w", torch::full({}, Complex(1, 1), type))) {}
  Tensor loss(const Tensor& x) const {
    const Tensor missed = w * x - torch::full({}, Complex(2, -3), x.options()) * x;
    return torch::real((missed * missed.conj()).mean());
  }
  Tensor w;
};

Tensor four_inputs(at::ScalarType type = torch::kComplexFloat) {
  return torch::stack({torch::full({}, Complex(1, 0), type), torch::full({}, Complex(0, 1), type),
                       torch::full({}, Complex(1, 1), type), torch::full({}, Complex(2, -1), type)});
}

void expect_near(const Tensor& value, Complex expected, double tolerance = 1e-6) {
  const auto found = value.to(torch::kComplexDouble).item<Complex>();
  EXPECT_NEAR(found.real(), expected.real(), tolerance);
  EXPECT_NEAR(found.imag(), expected.imag(), tolerance);
}

class ComplexParameter : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
};

TEST_P(ComplexParameter, StepsByLibTorchsGradientOfTheWholeBatch) {
  for (const at::ScalarType type : {torch::kComplexFloat, torch::kComplexDouble}) {
    const auto model =
        strategy_->make_module([&] { return std::make_shared<ComplexScale>(type); }, {.name = c10::toString(type)});
    const auto optimizer = strategy_->make_optimizer(model, optim::SGDOptions(0.1));
    ASSERT_TRUE(model.variables().front().trainable());
    const auto infos = strategy_->run(strategy_->split(four_inputs(type)), [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(model(ctx)->loss(b.input)).backward();
      return torch::tensor(optimizer.step(ctx).global_norm, torch::kDouble);
    });
    expect_near(model.state().at("w"), {1.45, -0.8});
    expect_near(model.export_module()->w.detach(), {1.45, -0.8});
    for (const Tensor& norm : infos) EXPECT_NEAR(norm.item<double>(), std::hypot(-4.5, 18), 1e-4);
  }
}

TEST_P(ComplexParameter, IsClippedByTheNormOfItsMagnitudes) {
  const auto model = strategy_->make_module([] { return std::make_shared<ComplexScale>(); });
  const auto optimizer = strategy_->make_optimizer(model, optim::SGDOptions(1));
  strategy_->run(strategy_->split(four_inputs()), [&](ReplicaContext& ctx, const Batch& b) {
    ctx.scale_loss(model(ctx)->loss(b.input)).backward();
    optimizer.step(ctx, {.clip_global_norm = 0.5});
  });
  const double norm = std::hypot(-4.5, 18);
  expect_near(model.state().at("w"), {1 + 4.5 / norm / 2, 1 - 18.0 / norm / 2}, 1e-5);
}

TEST_P(ComplexParameter, WithAnImaginaryPartThatIsNotFiniteIsRefused) {
  const Variable w = strategy_->make_variable(torch::ones({3}, torch::kComplexFloat), {.name = "w"});
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{w}, optim::AdamOptions(0.1));
  const auto fails = [&] {
    strategy_->run([&](ReplicaContext& ctx) {
      w.value(ctx).mutable_grad() = torch::full({3}, Complex(0, std::numeric_limits<double>::infinity()), w.dtype());
      optimizer.step(ctx, {.check_finite = true});
    });
  };
  expect_step_error<NonFiniteError>(fails, "LS-NOT-FINITE", {"'w'"});
  EXPECT_TRUE(torch::equal(w.read(), torch::ones({3}, torch::kComplexFloat)));
}

TEST_P(ComplexParameter, TakesAConjugatedGradientAsItsValue) {
  const Variable w = strategy_->make_variable(torch::zeros({2}, torch::kComplexFloat), {.name = "w"});
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(1));
  strategy_->run([&](ReplicaContext& ctx) {
    if (ctx.replica_id().value() > 0) return void(optimizer.step(ctx));
    w.value(ctx).mutable_grad() = torch::full({2}, Complex(1, 2), w.dtype()).conj();
    optimizer.step(ctx);
  });
  expect_near(w.read()[1], {-1, 2});
}

TEST_P(ComplexParameter, HasAMovingAverage) {
  const Variable w = strategy_->make_variable(torch::zeros({1}, torch::kComplexFloat), {.name = "w"});
  const std::vector<Variable> all{w};
  const auto average = strategy_->make_moving_average(all, {.decay = 0.5});
  for (const double value : {1, 3}) {
    w.assign(torch::full({1}, Complex(value, -value), w.dtype()));
    strategy_->run([&](ReplicaContext& ctx) { average.update(ctx); });
  }
  expect_near(average.variables().front().read()[0], {2, -2});
}

INSTANTIATE_TEST_SUITE_P(Strategies, ComplexParameter, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return std::string(one.param.name); });

/// Ours on complex numbers, and torch::optim on their real and imaginary parts.
template <class Stock, class Options>
void expect_as_parts(const Options& options) {
  const auto number = [](int64_t seed) {
    return torch::randn({300, 2}, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kFloat);
  };
  Tensor parts = number(1).requires_grad_();
  Stock stock(std::vector<Tensor>{parts}, options);
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
  const Variable w = strategy.make_variable(torch::view_as_complex(number(1)), {.name = "w"});
  const auto optimizer = strategy.make_optimizer(std::vector<Variable>{w}, options);
  for (int step = 0; step < 20; ++step) {
    parts.mutable_grad() = number(2 + step);
    stock.step();
    strategy.run([&](ReplicaContext& ctx) {
      w.value(ctx).mutable_grad() = torch::view_as_complex(number(2 + step)) / 2;
      optimizer.step(ctx);
    });
  }
  const Tensor found = torch::view_as_real(w.read());
  EXPECT_TRUE(torch::allclose(found, parts.detach(), 1e-5, 1e-6)) << (found - parts).abs().max();
}

TEST(ComplexRules, AreThoseOfTwoRealNumbers) {
  expect_as_parts<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01));
  expect_as_parts<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1));
  expect_as_parts<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.1));
  expect_as_parts<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
  expect_as_parts<optim::Adagrad>(optim::AdagradOptions(0.1).initial_accumulator_value(0.5).lr_decay(0.1));
}

TEST(ComplexOnWorkers, HasTheBitsOfOneWorkerInEachForm) {
  testing::expect_same_in_all_forms([](Strategy& strategy) {
    const auto number = [](double phase) { return torch::view_as_complex(testing::wave(3000, 2, phase).contiguous()); };
    const Variable a = strategy.make_variable(number(0), {.name = "a"});
    const Variable b = strategy.make_variable(number(1).to(torch::kComplexDouble), {.name = "b"});
    const auto optimizer =
        strategy.make_optimizer(std::vector<Variable>{a, b}, optim::AdagradOptions(0.1).initial_accumulator_value(0.5));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const double own = 1 + static_cast<double>(ctx.replica_id().value());
        ((a.value(ctx) * Complex(own, 1)).abs().sum() + (b.value(ctx) * Complex(1, own)).abs().pow(2).sum()).backward();
        optimizer.step(ctx, {.clip_global_norm = 1});
      });
    }
    optimizer.gather_slots();
    std::vector<std::string> digests;
    for (const Variable& one : {a, b, optimizer.slots()[0], optimizer.slots()[1]})
      digests.push_back(sha256_of(std::vector<std::pair<std::string, Tensor>>{{one.name(), one.read()}}));
    return digests;
  });
}

class ComplexCheckpoint : public testing::ScratchFolder {
 protected:
  Tensor trained(int from, int to) const {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 3, .seed = 1});
    const auto model = strategy.make_module([] { return std::make_shared<ComplexScale>(); });
    const auto optimizer = strategy.make_optimizer(model, optim::AdamOptions(0.1).amsgrad(true));
    Checkpoint checkpoint(strategy);
    if (from > 0) checkpoint.restore(path("one"));
    for (int step = from; step < to; ++step) {
      strategy.run(strategy.split(four_inputs()), [&](ReplicaContext& ctx, const Batch& b) {
        ctx.scale_loss(model(ctx)->loss(b.input)).backward();
        optimizer.step(ctx);
      });
      if (step == 2 && from == 0) checkpoint.save(path("one"));
    }
    return model.state().at("w");
  }
};

TEST_F(ComplexCheckpoint, ComesBackWithItsSlotsAndGoesOnWithTheSameBits) {
  const Tensor whole = trained(0, 6);
  EXPECT_TRUE(torch::equal(trained(3, 6), whole));
}

}  // namespace
}  // namespace lockstep
