// The kit for users' tests: it passes right programs and names what is wrong with others.
#include "lockstep/testing/local_replicas.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <random>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using testing::CompareOptions;
using testing::expect_error;
using testing::expect_same_as_one_device;
using testing::expect_same_on_any_lanes;
using testing::LocalReplicas;
using testing::message_from;
using testing::TrainingProgram;
using torch::Tensor;

using Model = Replicated<nn::Sequential>;
using Observe = std::function<void()>;

/// What a program does in its step, before the optimizer's.
using Backward = std::function<void(ReplicaContext&, Model&, const Batch&)>;

Tensor mean_loss(const ReplicaContext& ctx, Model& model, const Batch& part) {
  return F::cross_entropy(model(ctx)->forward(part.input), part.target);
}

void right(ReplicaContext& ctx, Model& model, const Batch& part) {
  ctx.scale_loss(mean_loss(ctx, model, part)).backward();
}

nn::Sequential plain_model() { return nn::Sequential(nn::Linear(24, 16), nn::Tanh(), nn::Linear(16, 7)); }

/// A training loop over two epochs of uneven batches, the last one short.
template <class Options>
TrainingProgram program(Backward backward, Options options, std::function<nn::Sequential()> factory = plain_model,
                        int64_t global_batch = 20) {
  return [=](Strategy& strategy, const Observe& observe) {
    auto model = strategy.make_module(factory);
    const auto optimizer = strategy.make_optimizer(model, options);
    const auto data = strategy.distribute(testing::make_data("", 50), {.global_batch = global_batch, .shuffle = true});
    observe();
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          backward(ctx, model, part);
          optimizer.step(ctx);
        });
        observe();
      }
    }
  };
}

TrainingProgram program(Backward backward) { return program(std::move(backward), torch::optim::SGDOptions(0.1)); }

/// The text of the DivergenceError that comparing a program gives; it has all of `parts`.
void expect_found(const TrainingProgram& wrong, const std::vector<std::string>& parts, CompareOptions options = {}) {
  const std::string text = message_from<DivergenceError>([&] { expect_same_as_one_device(wrong, options); });
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n  in: " << text;
}

TEST(LocalReplicas, AreMirroredReplicasBitForBitAndTakeNoCores) {
  const auto weights_on = [](Strategy& strategy) {
    std::vector<std::pair<std::string, Tensor>> weights;
    program(right)(strategy, [] {});
    auto model = strategy.make_module(plain_model, {.name = "other"});
    const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.01));
    for (const auto& batch : strategy.distribute(testing::make_data("", 50), {.global_batch = 7}).epoch(0)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        right(ctx, model, part);
        optimizer.step(ctx);
      });
    }
    for (const Variable& variable : model.variables()) weights.emplace_back(variable.name(), variable.read());
    return sha256_of(weights);
  };
  MirroredStrategy mirrored({.devices = testing::lanes(2), .replicas = 8, .seed = 3});
  LocalReplicas local({.replicas = 8, .seed = 3});
  LocalReplicas copies({.replicas = 8, .lanes = 4, .copies = Copies::kPerReplica, .seed = 3});
  const std::string expected = weights_on(mirrored);
  EXPECT_EQ(weights_on(local), expected);
  EXPECT_EQ(weights_on(copies), expected);
  EXPECT_EQ(local.num_replicas(), 8);
  EXPECT_EQ(local.devices(), std::vector<std::string>{"cpu:0"});
  EXPECT_NE(local.describe().find("not pinned"), std::string::npos) << local.describe();
}

TEST(LocalReplicas, RefuseNumbersThatMakeNoSense) {
  expect_error<UsageError>([] { LocalReplicas({.replicas = 0}); }, "LS-OPTION", {"0 replicas", "1 lane"});
  expect_error<UsageError>([] { LocalReplicas({.lanes = 0}); }, "LS-OPTION", {"0 lanes"});
  expect_error<UsageError>([] { LocalReplicas({.replicas = 2, .lanes = 3}); }, "LS-LANES", {"2 replicas", "3 lanes"});
}

TEST(ExpectSameAsOneDevice, PassesARightProgramWithUnevenAndEmptyPartsUnderEachOptimizer) {
  using namespace torch::optim;
  for (const int64_t replicas : {1, 2, 6, 7}) {
    EXPECT_NO_THROW(expect_same_as_one_device(program(right), {.replicas = replicas})) << replicas;
  }
  const auto small = [](auto options) { return program(right, options, plain_model, /*global_batch=*/4); };
  EXPECT_NO_THROW(expect_same_as_one_device(small(SGDOptions(0.1))));
  EXPECT_NO_THROW(expect_same_as_one_device(small(SGDOptions(0.1).momentum(0.9))));
  EXPECT_NO_THROW(expect_same_as_one_device(small(AdamWOptions(0.01))));
  EXPECT_NO_THROW(expect_same_as_one_device(small(RMSpropOptions(0.001))));
}

TEST(ExpectSameAsOneDevice, LooksAtMetricsToo) {
  const auto with_metric = [](bool weighed) -> TrainingProgram {
    return [=](Strategy& strategy, const Observe& observe) {
      const metrics::Mean loss(strategy, "loss");
      const auto data = strategy.distribute(testing::make_data("", 50), {.global_batch = 20});
      observe();
      for (const auto& batch : data.epoch(0)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          loss.update(ctx, part.input.mean(), weighed ? part.size() : 1);
        });
        observe();
      }
    };
  };
  EXPECT_NO_THROW(expect_same_as_one_device(with_metric(true)));
  expect_found(with_metric(false), {"after step 0, variable 'loss' differs", "what each replica gives"});
}

TEST(ExpectSameAsOneDevice, FindsALossThatIsNotScaled) {
  const auto forgotten = [](ReplicaContext& ctx, Model& model, const Batch& part) {
    mean_loss(ctx, model, part).backward();
  };
  // Even parts, so that the gradient is exactly 5 times what it should be.
  expect_found(
      program(forgotten),
      {"after step 0, variable 'model.0.weight' differs between one device and 5 replicas on 1 lane: element [",
       "] is ", " and ", ", distance ", "of 384 elements differ", "and 3 other variables",
       "goes through ctx.scale_loss(): the variable moved 5 times as far"},
      {.replicas = 5});
  expect_found(program(forgotten), {"after step 0", "ctx.scale_loss()"}, {.replicas = 6});
  // However small the learning rate: what counts is how far a variable moved.
  expect_found(program(forgotten, torch::optim::SGDOptions(1e-5)), {"after step 0", "times as far"}, {.replicas = 5});
  // Adam's update is the same for a gradient 5 times as large: its slots are not.
  expect_found(program(forgotten, torch::optim::AdamOptions(0.01)), {"after step 0", "ctx.scale_loss()"},
               {.replicas = 5});
}

TEST(ExpectSameAsOneDevice, FindsAVariableThatIsSetFromOnePartOfTheBatch) {
  const auto setting = [](VariableOptions options, auto value) -> TrainingProgram {
    return [=](Strategy& strategy, const Observe& observe) {
      const Variable v = strategy.make_variable(torch::zeros({2, 3}), options);
      const auto data = strategy.distribute(testing::make_data("", 60), {.global_batch = 20});
      observe();
      for (const auto& batch : data.epoch(0)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          v.assign(ctx, torch::full({2, 3}, value(ctx, part)));
        });
        observe();
      }
    };
  };
  const auto mean = [](ReplicaContext&, const Batch& part) { return part.input.mean().template item<float>(); };
  VariableOptions averaged{.name = "average", .trainable = false, .aggregation = VariableAggregation::kMean};
  expect_found(setting(averaged, mean), {"after step 0, variable 'average'", "[0, 0]", "6 of 6 elements",
                                         "check what each replica gives to assign", "ctx.all_reduce"});
  VariableOptions own{.name = "own", .synchronization = VariableSynchronization::kOnRead};
  own.aggregation = VariableAggregation::kOnlyFirstReplica;
  expect_found(setting(own, mean), {"after step 0, variable 'own'", "what each replica gives the variable"});
  // The right way passes, and so does what has no one value.
  const auto whole = [](ReplicaContext& ctx, const Batch& part) {
    return (ctx.all_reduce(Reduction::kSum, part.input.sum()) / (24 * ctx.global_batch_size())).template item<float>();
  };
  EXPECT_NO_THROW(expect_same_as_one_device(setting(averaged, whole)));
  own.aggregation = VariableAggregation::kNone;
  EXPECT_NO_THROW(expect_same_as_one_device(setting(own, mean)));
}

TEST(ExpectSameAsOneDevice, FindsNumbersThatAreNoFunctionOfTheSeed) {
  const auto noise = [](auto draw) {
    return program([=](ReplicaContext& ctx, Model& model, const Batch& part) {
      const Batch moved{part.input + draw(), part.target, part.ids, part.global_size};
      right(ctx, model, moved);
    });
  };
  const std::vector<std::string> repeats{"after step 0, variable 'model.0.weight' differs between one device and one ",
                                         "run again", "and bits must be equal", "LS-NOT-REPEATABLE"};
  expect_found(noise([] {
                 static std::mt19937 engine(static_cast<unsigned>(
                     std::chrono::steady_clock::now().time_since_epoch().count()));  // shared, seeded by time
                 return static_cast<double>(engine()) / 0x1p32;  // of 2^32 numbers: two draws are hardly ever equal
               }),
               repeats, {.replicas = 5, .lanes = {1}});
  expect_found(noise([] {
                 static std::atomic<int> counter{0};
                 return 0.01 * counter++;
               }),
               repeats, {.replicas = 5, .lanes = {1}});
  // LibTorch's own generator, by hand, repeats itself in a new process; but its numbers are dealt to replicas as it
  // comes, and are not the replicas' streams.
  expect_found(noise([] { return torch::rand({}, at::detail::getDefaultCPUGenerator()).template item<double>(); }),
               {"after step 0", "between one device and 5 replicas on 1 lane", "draws random numbers"},
               {.replicas = 5, .lanes = {1}});
}

TEST(ExpectSameAsOneDevice, NamesBatchNorm) {
  const auto normed = [] {
    return nn::Sequential(nn::Linear(24, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Linear(16, 7));
  };
  const auto with_norm = program(right, torch::optim::SGDOptions(0.1), normed);
  expect_found(with_norm, {"after step 0", "BatchNorm by expect_same_on_any_lanes"}, {.replicas = 5});
  EXPECT_NO_THROW(expect_same_on_any_lanes(with_norm, {.replicas = 5}));
}

TEST(ExpectSameAsOneDevice, NamesWhatIsMissingOrOfAnotherShape) {
  const auto by_replicas = [](auto set_up) -> TrainingProgram {
    return [=](Strategy& strategy, const Observe& observe) {
      const auto variables = set_up(strategy);
      observe();
      for (int64_t i = 0; i < (variables.size() > 2 ? strategy.num_replicas() : 2); ++i) {
        strategy.run([](ReplicaContext&) {});
        observe();
      }
    };
  };
  const auto zeros = [](Strategy& strategy, const char* name, int64_t size) {
    return strategy.make_variable(torch::zeros({size}), {.name = name});
  };
  expect_found(by_replicas([=](Strategy& s) {
                 std::vector<Variable> all{zeros(s, "a", 1)};
                 if (s.num_replicas() > 1) all.push_back(zeros(s, "b", 1));
                 return all;
               }),
               {"before the first step, variable 'b' is there on 6 replicas on 1 lane and not on one device"});
  expect_found(by_replicas([=](Strategy& s) { return std::vector<Variable>{zeros(s, "a", s.num_replicas())}; }),
               {"before the first step, variable 'a'", "Float [1] and Float [6]"});
  expect_found(by_replicas([=](Strategy& s) {
                 return std::vector<Variable>{zeros(s, "a", 1), zeros(s, "b", 1), zeros(s, "c", 1)};
               }),
               {"one device was observed 2 times and 6 replicas on 1 lane 7 times"});
  expect_found(by_replicas([=](Strategy& s) {
                 return std::vector<Variable>{
                     s.make_variable(torch::full({2}, static_cast<double>(s.num_replicas())), {.name = "a"})};
               }),
               {"before the first step, variable 'a' differs", "[0] is 1 and 6, distance 5", "initial values"});
}

TEST(ExpectSameAsOneDevice, SeesNaNOnOneSide) {
  const auto with_nan = [](ReplicaContext& ctx, Model& model, const Batch& part) {
    const double factor = ctx.num_replicas() > 1 ? std::nan("") : 1.0;
    ctx.scale_loss(mean_loss(ctx, model, part) * factor).backward();
  };
  expect_found(program(with_nan), {"after step 0, variable 'model.0.weight'", "and nan, distance nan"});
}

TEST(ExpectSameAsOneDevice, GivesTheProgramAGeneratorAsInANewProcess) {
  const auto unseeded = [](Strategy& strategy, const Observe& observe) {
    const auto v = strategy.make_variable(torch::zeros({4}), {.name = "v"});
    const Tensor value = torch::randn({4});  // outside of steps: LibTorch's global generator
    observe();
    strategy.run([](ReplicaContext&) {});
    v.assign(value);
    observe();
  };
  torch::manual_seed(99);
  const Tensor expected = torch::randn({3});
  torch::manual_seed(99);
  EXPECT_NO_THROW(expect_same_as_one_device(unseeded));
  EXPECT_TRUE(torch::equal(torch::randn({3}), expected)) << "and leaves the caller's as it was";
}

TEST(ExpectSameAsOneDevice, RefusesProgramsThatDoNotObserveAndPassesTheirErrorsOn) {
  const auto refused = [](const TrainingProgram& program) {
    expect_error<UsageError>([&] { expect_same_as_one_device(program); }, "LS-OBSERVE", {"observe()"});
  };
  refused([](Strategy&, const Observe&) {});
  refused([](Strategy&, const Observe& observe) { observe(); });
  refused([](Strategy& strategy, const Observe& observe) {
    strategy.run([](ReplicaContext&) {});
    observe();
  });
  const auto inside = [](Strategy& strategy, const Observe& observe) {
    observe();
    strategy.run([&](ReplicaContext&) { observe(); });
  };
  testing::expect_step_error<UsageError>([&] { expect_same_as_one_device(inside); }, "LS-INSIDE-STEP",
                                         {"Strategy::variables", "replica 0", "step 0"});
  EXPECT_THROW(expect_same_as_one_device([](Strategy&, const Observe&) { throw std::out_of_range("mine"); }),
               std::out_of_range);
  expect_error<UsageError>([] { expect_same_as_one_device(program(right), {.tolerance = -1}); }, "LS-OPTION", {"-1"});
  expect_error<UsageError>([] { expect_same_as_one_device(program(right), {.lanes = {64}}); }, "LS-LANES",
                           {"64 lanes"});
}

TEST(ExpectSameOnAnyLanes, PassesDropoutAndEveryProgramOfTheZoo) {
  const auto dropping = [] { return nn::Sequential(nn::Linear(24, 16), nn::Dropout(0.5), nn::Linear(16, 7)); };
  EXPECT_NO_THROW(expect_same_on_any_lanes(program(right, torch::optim::AdamOptions(0.01), dropping)));
  for (const char* name : {"cnn", "embedding", "twice", "double"}) {
    EXPECT_NO_THROW(expect_same_on_any_lanes([&](Strategy& strategy, const Observe& observe) {
      const auto model = strategy.make_module([&] { return testing::make_program(name); });
      const auto optimizer = testing::make_optimizer(strategy, model, "adamw");
      observe();
      for (const auto& batch : strategy.distribute(testing::make_data(name, 50), {.global_batch = 22}).epoch(0)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
          optimizer.step(ctx);
        });
        observe();
      }
    })) << name;
  }
}

TEST(ExpectSameOnAnyLanes, FindsWhatDependsOnTheNumberOfLanes) {
  const auto sharing = [](Strategy& strategy, const Observe& observe) {
    const auto v =
        strategy.make_variable(torch::zeros({}), {.name = "seen", .synchronization = VariableSynchronization::kOnRead});
    const auto lanes = static_cast<double>(strategy.devices().size());
    observe();
    strategy.run([&](ReplicaContext& ctx) { v.assign(ctx, torch::full({}, ctx.replica_id() == 3 ? lanes : 0.0)); });
    observe();
  };
  expect_error<DivergenceError>(
      [&] { expect_same_on_any_lanes(sharing); }, "LS-LANES-DECIDE",
      {"step 0", "replica 3", "variable 'seen'", "6 replicas on 1 lane", "6 replicas on 2 lanes"});
}

}  // namespace
}  // namespace lockstep
