// SyncBatchNorm on any number of replicas against torch::nn's batch normalisation of the whole batch on one device.
#include "lockstep/layers/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;
using torch::nn::BatchNormOptions;

constexpr int64_t kChannels = 5;
constexpr double kTolerance = 1e-5;

bool close(const Tensor& a, const Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() && torch::allclose(a.to(torch::kDouble), b.to(torch::kDouble), tolerance, tolerance);
}

/// What one forward and backward leaves.
struct Result {
  Tensor output;
  Tensor input_gradient;
  std::map<std::string, Tensor> gradients;
  std::map<std::string, Tensor> buffers;
};

void expect_close(const Result& got, const Result& expected, double tolerance = kTolerance) {
  EXPECT_TRUE(close(got.output, expected.output, tolerance)) << (got.output - expected.output).abs().max();
  EXPECT_TRUE(close(got.input_gradient, expected.input_gradient, tolerance))
      << (got.input_gradient - expected.input_gradient).abs().max();
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (const auto& [name, value] : expected.gradients) {
    EXPECT_TRUE(close(got.gradients.at(name), value, tolerance)) << name;
  }
  ASSERT_EQ(got.buffers.size(), expected.buffers.size());
  for (const auto& [name, value] : expected.buffers) {
    EXPECT_TRUE(close(got.buffers.at(name), value, tolerance)) << name;
  }
}

/// A loss that is no function of mean and variance alone, so that every gradient counts.
Tensor loss_of(const Tensor& output, const Tensor& factors) { return (output * factors + output.pow(3) * 0.1).sum(); }

template <class Norm>
Result on_one_device(Norm& norm, const Tensor& whole, const Tensor& factors) {
  Tensor input = whole.detach().clone().requires_grad_();
  Result result;
  result.output = norm->forward(input);
  loss_of(result.output, factors).backward();
  result.input_gradient = input.grad();
  for (const auto& item : norm->named_parameters()) result.gradients[item.key()] = item.value().grad();
  for (const auto& item : norm->named_buffers()) {
    if (item.value().defined()) result.buffers[item.key()] = item.value().clone();
  }
  return result;
}

/// How many samples each replica has.
struct Split {
  std::vector<int64_t> sizes;
  int num_lanes;
  int64_t whole() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }
};

class SyncBatchNormOn : public ::testing::TestWithParam<Split> {
 protected:
  SyncBatchNormOn()
      : strategy_({.devices = lanes(GetParam().num_lanes), .replicas = static_cast<int64_t>(GetParam().sizes.size())}) {
    torch::manual_seed(11);
  }

  /// [samples, channels, ...] of `dimensions` in all, far from 0.
  static Tensor samples(int64_t dimensions) {
    std::vector<int64_t> shape{GetParam().whole(), kChannels, 3, 2, 2, 2};
    shape.resize(static_cast<std::size_t>(dimensions));
    return torch::randn(shape) * 2 + 3;
  }
  static BatchNormOptions options() { return BatchNormOptions(kChannels).eps(1e-3).momentum(0.3); }

  Result on_replicas(const Replicated<SyncBatchNorm>& model, const Tensor& whole, const Tensor& factors) {
    std::vector<Tensor> inputs = whole.detach().split_with_sizes(GetParam().sizes);
    const auto parts = factors.split_with_sizes(GetParam().sizes);
    for (Tensor& input : inputs) input = input.clone().requires_grad_();
    const auto outputs = strategy_.run([&](ReplicaContext& ctx) {
      const auto r = static_cast<std::size_t>(ctx.replica_id());
      for (auto& parameter : model(ctx)->parameters()) parameter.mutable_grad() = Tensor();
      const Tensor output = model(ctx)->forward(inputs[r]);
      loss_of(output, parts[r]).backward();
      return output;
    });
    Result result;
    result.output = torch::cat(std::vector<Tensor>(outputs.begin(), outputs.end()));
    std::vector<Tensor> gradients;
    for (const Tensor& input : inputs) gradients.push_back(input.grad());
    result.input_gradient = torch::cat(gradients);
    for (const Variable& variable : model.variables()) {
      const std::string name = variable.name().substr(std::string("model.").size());
      if (variable.synchronization() == VariableSynchronization::kOnRead) {
        for (const Tensor& component : variable.components()) {
          EXPECT_TRUE(torch::equal(component, variable.components()[0])) << name << " differs between replicas";
        }
        result.buffers[name] = variable.read();
        continue;
      }
      const auto each = strategy_.run([&](ReplicaContext& ctx) { return variable.value(ctx).grad().clone(); });
      result.gradients[name] = strategy_.reduce(Reduction::kSum, each);
    }
    return result;
  }

  template <class Norm>
  void compare(Norm expected, const Tensor& whole, double tolerance = kTolerance) {
    const auto model = strategy_.make_module([&] { return SyncBatchNorm(expected); });
    ASSERT_EQ(model.variables().size(), expected->parameters().size() + expected->buffers().size());
    const Tensor factors = torch::randn_like(whole);
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(step);
      const Tensor input = whole + step;
      expected->zero_grad();
      expect_close(on_replicas(model, input, factors), on_one_device(expected, input, factors), tolerance);
    }
  }

  template <class Norm>
  static Norm with_random_parameters(Norm norm) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : norm->parameters()) parameter.normal_();
    return norm;
  }

  MirroredStrategy strategy_;
};

TEST_P(SyncBatchNormOn, EqualsOneDeviceInTwoDimensions) {
  compare(with_random_parameters(torch::nn::BatchNorm1d(options())), samples(2));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceInThreeDimensions) {
  compare(with_random_parameters(torch::nn::BatchNorm1d(options())), samples(3));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceInFourDimensions) {
  compare(with_random_parameters(torch::nn::BatchNorm2d(options())), samples(4));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceInFiveDimensions) {
  compare(with_random_parameters(torch::nn::BatchNorm3d(options())), samples(5));
}

TEST_P(SyncBatchNormOn, TakesMoreDimensionsThanTorchHasModulesFor) {
  auto expected = with_random_parameters(torch::nn::BatchNorm2d(options()));
  const auto model = strategy_.make_module([&] { return SyncBatchNorm(expected); });
  const Tensor whole = samples(6);
  const Tensor factors = torch::randn_like(whole);
  auto got = on_replicas(model, whole, factors);
  const auto flat = [](const Tensor& value) { return value.flatten(3); };
  got.output = flat(got.output);
  got.input_gradient = flat(got.input_gradient);
  expect_close(got, on_one_device(expected, flat(whole), flat(factors)));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceWithACumulativeAverage) {
  compare(with_random_parameters(torch::nn::BatchNorm2d(options().momentum(torch::nullopt))), samples(4));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceWithoutParametersAndWithoutRunningStatistics) {
  compare(torch::nn::BatchNorm2d(options().affine(false)), samples(4));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceWithoutRunningStatistics) {
  compare(with_random_parameters(torch::nn::BatchNorm2d(options().track_running_stats(false))), samples(4));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceInDouble) {
  auto expected = with_random_parameters(torch::nn::BatchNorm2d(options()));
  expected->to(torch::kDouble);
  compare(expected, samples(4).to(torch::kDouble));
}

TEST_P(SyncBatchNormOn, EqualsOneDeviceWhereTheMeanIsFarLargerThanTheSpread) {
  // Both sides round a mean of 60 where a spread of 1 is what counts, to 60 times as much: LibTorch's own gradient in
  // float32 was found up to 18 times the usual tolerance from that in float64.
  compare(torch::nn::BatchNorm2d(options()), samples(4) + 60, 60 * kTolerance);
}

TEST_P(SyncBatchNormOn, InEvaluationModeUsesTheRunningStatisticsAndDoesNotMeet) {
  auto expected = with_random_parameters(torch::nn::BatchNorm2d(options()));
  on_one_device(expected, samples(4), samples(4));  // running statistics of its own
  const auto model = strategy_.make_module([&] { return SyncBatchNorm(expected); });
  expected->eval();
  const Tensor input = torch::randn({4, kChannels, 3, 2});
  strategy_.evaluate([&](ReplicaContext& ctx) {
    if (ctx.replica_id() > 0) return;
    EXPECT_TRUE(torch::equal(model(ctx)->forward(input), expected->forward(input)));
  });
}

TEST_P(SyncBatchNormOn, TrainsANetworkLikeOneDeviceWithShortBatchesAndEmptyParts) {
  const auto features = torch::randn({23, 2, 3, 4});
  const auto targets = torch::randint(0, 3, {23}, torch::kLong);
  const auto train = [&](Strategy& strategy, bool synchronized) {
    const auto model = strategy.make_module([&] {
      torch::nn::Sequential net;
      net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, kChannels, 3).padding(1)));
      if (synchronized) {
        net->push_back(SyncBatchNorm(kChannels));
      } else {
        net->push_back(torch::nn::BatchNorm2d(kChannels));
      }
      net->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
      net->push_back(torch::nn::Flatten());
      net->push_back(torch::nn::Linear(kChannels * 12, 3));
      return net;
    });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto data = strategy.distribute(data::from_tensors(features, targets), {.global_batch = 10});
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {  // of 10, 10 and 3 samples
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          const auto mean = torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target);
          ctx.scale_loss(mean).backward();
          optimizer.step(ctx);
        });
      }
    }
    return model.state();
  };
  OneDeviceStrategy one;
  const auto expected = train(one, false);
  const auto got = train(strategy_, true);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(torch::allclose(got.at(name).to(torch::kDouble), value.to(torch::kDouble), 1e-4, 1e-5)) << name;
  }
}

TEST_P(SyncBatchNormOn, OneValueOverAllReplicasIsRefusedAndNoneChangesNothing) {
  const auto model = strategy_.make_module([] { return SyncBatchNorm(kChannels); });
  const auto state = model.state();
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->forward(torch::ones({ctx.replica_id() == 0 ? 1 : 0, kChannels}));
  };
  testing::expect_step_error<UsageError>([&] { strategy_.run(step); }, "LS-BATCH", {"SyncBatchNorm", "one value"});
  strategy_.run([&](ReplicaContext& ctx) {
    Tensor input = torch::ones({0, kChannels, 2}).requires_grad_();
    const Tensor output = model(ctx)->forward(input);
    output.sum().backward();
    EXPECT_EQ(output.sizes(), input.sizes());
    EXPECT_EQ(input.grad().sizes(), input.sizes());
  });
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(Splits, SyncBatchNormOn,
                         ::testing::Values(Split{{6}, 1}, Split{{4, 4}, 2}, Split{{5, 1, 3}, 1}, Split{{0, 7, 0, 2}, 2},
                                           Split{{1, 1, 1, 1, 2, 0, 3, 4}, 2}),
                         [](const auto& split) {
                           std::string name;
                           for (const int64_t size : split.param.sizes) name += "x" + std::to_string(size);
                           return name + "on" + std::to_string(split.param.num_lanes);
                         });

TEST(SyncBatchNorm, OutsideOfStepsIsBatchNormInBothModes) {
  torch::manual_seed(3);
  torch::nn::BatchNorm2d expected{BatchNormOptions(kChannels)};
  SyncBatchNorm norm(expected);
  for (int step = 0; step < 2; ++step) {
    const Tensor input = torch::randn({3, kChannels, 4, 2});
    const Tensor factors = torch::randn_like(input);
    expected->zero_grad();
    norm->zero_grad();
    expect_close(on_one_device(norm, input, factors), on_one_device(expected, input, factors));
  }
  norm->eval();
  expected->eval();
  const Tensor input = torch::randn({1, kChannels, 4, 2});
  EXPECT_TRUE(close(norm->forward(input), expected->forward(input), kTolerance));
  const Tensor one = torch::randn({1, kChannels});
  norm->forward(one);  // one sample is enough for evaluation
  norm->train();
  expect_error<UsageError>([&] { norm->forward(one); }, "LS-BATCH", {"SyncBatchNorm", "one value"});
}

TEST(SyncBatchNorm, TakesOverWhatABatchNormHolds) {
  torch::nn::BatchNorm1d source(BatchNormOptions(3).eps(0.5).momentum(0.7));
  source->forward(torch::randn({4, 3}));
  source->weight.set_requires_grad(false);
  source->eval();
  const SyncBatchNorm norm(source);
  EXPECT_EQ(norm->options.eps(), 0.5);
  EXPECT_FALSE(norm->is_training());
  EXPECT_FALSE(norm->weight.requires_grad());
  EXPECT_TRUE(norm->bias.requires_grad());
  EXPECT_TRUE(torch::equal(norm->running_mean, source->running_mean));
  EXPECT_TRUE(torch::equal(norm->num_batches_tracked, source->num_batches_tracked));
  EXPECT_NE(norm->running_mean.data_ptr(), source->running_mean.data_ptr()) << "a copy";
  const auto names = norm->named_buffers().keys();
  EXPECT_EQ(names, source->named_buffers().keys());
  const SyncBatchNorm from_module(*source);
  EXPECT_TRUE(torch::equal(from_module->running_var, source->running_var));
}

TEST(SyncBatchNorm, IsATorchModuleLikeOthers) {
  struct Net : torch::nn::Module {
    Net() { norm = register_module("norm", SyncBatchNorm(4)); }
    SyncBatchNorm norm{nullptr};
  };
  Net net;
  EXPECT_EQ(net.named_parameters().keys(), (std::vector<std::string>{"norm.weight", "norm.bias"}));
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(net.norm->clone());
  ASSERT_TRUE(copy);
  EXPECT_NE(copy->weight.data_ptr(), net.norm->weight.data_ptr());
  std::stringstream text;
  text << *net.norm;
  EXPECT_NE(text.str().find("SyncBatchNorm(4"), std::string::npos);
  torch::nn::Sequential sequence(torch::nn::Linear(2, 4), SyncBatchNorm(BatchNormOptions(4).affine(false)));
  EXPECT_EQ(sequence->forward(torch::randn({3, 2})).size(1), 4);
}

TEST(SyncBatchNorm, RefusesWhatIsNoBatchAndASecondDerivative) {
  SyncBatchNorm norm(3);
  const auto expect_refused = [&](const Tensor& bad, std::string_view code, std::string_view value,
                                  const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { norm->forward(bad); }, code, {"SyncBatchNorm", value}, where);
  };
  expect_refused(Tensor(), "LS-NOT-DENSE", "undefined");
  expect_refused(torch::ones({3}), "LS-SHAPE", "[3]");
  expect_refused(torch::ones({2, 4}), "LS-SHAPE", "[2, 4]");
  expect_refused(torch::ones({2, 3}, torch::kLong), "LS-DTYPE", "Long");
  expect_refused(torch::ones({2, 3}).to_sparse(), "LS-NOT-DENSE", "sparse");
  const Tensor input = torch::randn({4, 3}).requires_grad_();
  const auto second_derivative = [&] {
    torch::autograd::grad({norm->forward(input).pow(2).sum()}, {input}, {}, true, /*create_graph=*/true);
  };
  expect_error<UsageError>(second_derivative, "LS-SECOND-DERIVATIVE", {"SyncBatchNorm"});
}

TEST(SyncBatchNorm, ABackwardOutsideOfTheStepNamesTheRule) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto model = strategy.make_module([] { return SyncBatchNorm(3); });
  const auto losses = strategy.run([&](ReplicaContext& ctx) {
    return model(ctx)->forward(torch::randn({4, 3}).requires_grad_()).pow(2).sum();
  });
  expect_error<UsageError>([&] { losses[0].backward(); }, "LS-OUTSIDE-STEP", {"SyncBatchNorm"});
}

TEST(SyncBatchNorm, AllowsWritesInPlaceAfterIt) {
  for (const bool affine : {true, false}) {
    SyncBatchNorm norm(BatchNormOptions(3).affine(affine));
    Tensor input = torch::randn({4, 3}).requires_grad_();
    norm->forward(input).relu_().sum().backward();
    EXPECT_TRUE(input.grad().defined());
  }
}

TEST(SyncBatchNorm, KeepsAHalfPrecisionInputsDtype) {
  SyncBatchNorm norm(3);
  const Tensor input = torch::randn({8, 3}).to(torch::kBFloat16).requires_grad_();
  const Tensor output = norm->forward(input);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  output.to(torch::kFloat).pow(2).sum().backward();
  EXPECT_EQ(input.grad().scalar_type(), torch::kBFloat16);
  EXPECT_NEAR(output.to(torch::kFloat).mean().item<double>(), 0, 1e-2);
}

}  // namespace
}  // namespace lockstep
