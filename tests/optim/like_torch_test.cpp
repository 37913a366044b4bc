// The optimizers against torch::optim, option by option.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;
namespace optim = torch::optim;

const std::vector<std::vector<int64_t>> kShapes{{3, 5}, {1}, {5000}, {2, 3, 4}};

Tensor start_of(std::size_t i) { return torch::randn(kShapes[i], at::make_generator<at::CPUGeneratorImpl>(i)); }
Tensor gradient_of(std::size_t i, int step) {
  return torch::randn(kShapes[i], at::make_generator<at::CPUGeneratorImpl>(1000 * step + i)) * (1 + step % 3);
}

double relative_error(const Tensor& a, const Tensor& b) {
  return ((a - b).to(torch::kDouble).norm() / b.to(torch::kDouble).norm().clamp_min(1e-30)).item<double>();
}

/// 100 steps of a fixed gradient sequence, by torch::optim and by ours.
template <class Stock, class Options>
void expect_like_torch(const Options& options, int64_t replicas, at::ScalarType type = torch::kFloat,
                       double tolerance = 1e-6) {
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < kShapes.size(); ++i) weights.push_back(start_of(i).to(type).requires_grad_());
  Stock stock(weights, options);

  MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas});
  std::vector<Variable> variables;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    variables.push_back(strategy.make_variable(start_of(i).to(type), {.name = "v" + std::to_string(i)}));
  }
  const auto optimizer = strategy.make_optimizer(variables, options);
  for (int step = 0; step < 100; ++step) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = gradient_of(i, step).to(type);
    stock.step();
    strategy.run([&](ReplicaContext& ctx) {
      for (std::size_t i = 0; i < variables.size(); ++i) {
        // Equal shares whose sum is the gradient exactly: replicas is a power of two.
        variables[i].value(ctx).mutable_grad() = gradient_of(i, step).to(type) / static_cast<double>(replicas);
      }
      EXPECT_TRUE(optimizer.step(ctx).applied);
    });
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_LE(relative_error(variables[i].read(), weights[i].detach()), tolerance) << "tensor " << i;
  }
}

class LikeTorch : public ::testing::TestWithParam<int64_t> {};

TEST_P(LikeTorch, Sgd) {
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05), GetParam());
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05).weight_decay(0.1), GetParam());
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9), GetParam());
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.01), GetParam());
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01), GetParam());
}

TEST_P(LikeTorch, Adam) {
  expect_like_torch<optim::Adam>(optim::AdamOptions(0.01), GetParam());
  expect_like_torch<optim::Adam>(optim::AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-4).weight_decay(0.1), GetParam());
  expect_like_torch<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true), GetParam());
}

TEST_P(LikeTorch, AdamW) {
  expect_like_torch<optim::AdamW>(optim::AdamWOptions(0.01), GetParam());
  expect_like_torch<optim::AdamW>(optim::AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.3).amsgrad(true),
                                  GetParam());
}

TEST_P(LikeTorch, RMSprop) {
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01), GetParam());
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).alpha(0.9).eps(1e-5).weight_decay(0.1), GetParam());
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.8), GetParam());
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true), GetParam());
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.8).weight_decay(0.1),
                                    GetParam());
}

TEST_P(LikeTorch, Adagrad) {
  expect_like_torch<optim::Adagrad>(optim::AdagradOptions(0.1), GetParam());
  expect_like_torch<optim::Adagrad>(
      optim::AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5).eps(1e-6), GetParam());
}

TEST_P(LikeTorch, InDouble) {
  expect_like_torch<optim::Adam>(optim::AdamOptions(0.01).weight_decay(0.1), GetParam(), torch::kDouble, 1e-12);
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9), GetParam(), torch::kDouble, 1e-12);
}

TEST_P(LikeTorch, InHalfPrecisionUpToItsRounding) {
  // torch::optim rounds every operation to 8 bits of mantissa, the library once.
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.05), GetParam(), torch::kBFloat16, 0.02);
  expect_like_torch<optim::Adagrad>(optim::AdagradOptions(0.1), GetParam(), torch::kBFloat16, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Replicas, LikeTorch, ::testing::Values(1, 4));

}  // namespace
}  // namespace lockstep
