// Which random numbers a step draws.
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/replica/random_streams.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

/// What each replica draws in each of a few steps, by LibTorch's own means.
std::vector<std::vector<Tensor>> draws(int64_t replicas, int num_lanes, uint64_t seed, int steps = 2) {
  MirroredStrategy strategy({.devices = lanes(num_lanes), .replicas = replicas, .seed = seed});
  std::vector<std::vector<Tensor>> all;
  for (int step = 0; step < steps; ++step) {
    all.push_back(strategy.local_results(strategy.run([](ReplicaContext&) {
      torch::nn::Dropout dropout(0.5);
      Tensor filled = torch::empty({5});
      filled.bernoulli_(0.5);
      return torch::cat({dropout(torch::ones({40})), torch::randn({3}), torch::rand({3}), filled,
                         torch::empty({2}).normal_(), torch::randint(100, {4}).to(torch::kFloat),
                         torch::randperm(6).to(torch::kFloat),
                         torch::multinomial(torch::ones({9}), 3).to(torch::kFloat)});
    })));
  }
  return all;
}

TEST(RandomStreams, DifferByReplicaAndStep) {
  const auto all = draws(4, 2, 7);
  for (int step = 0; step < 2; ++step) {
    for (int a = 0; a < 4; ++a) {
      for (int b = a + 1; b < 4; ++b) EXPECT_FALSE(torch::equal(all[step][a], all[step][b])) << a << " and " << b;
    }
  }
  for (int r = 0; r < 4; ++r) EXPECT_FALSE(torch::equal(all[0][r], all[1][r])) << "steps of replica " << r;
}

TEST(RandomStreams, AreTheSameOnAnyNumberOfLanes) {
  const auto one = draws(4, 1, 7);
  for (const int num_lanes : {2, 4}) {
    const auto other = draws(4, num_lanes, 7);
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 4; ++r)
        EXPECT_TRUE(torch::equal(one[step][r], other[step][r])) << num_lanes << " lanes, replica " << r;
    }
  }
}

TEST(RandomStreams, DoNotDependOnTheNumberOfReplicas) {
  const auto two = draws(2, 1, 7);
  const auto four = draws(4, 1, 7);
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(torch::equal(two[0][r], four[0][r]));
}

TEST(RandomStreams, DifferBySeed) { EXPECT_FALSE(torch::equal(draws(1, 1, 7)[0][0], draws(1, 1, 8)[0][0])); }

TEST(RandomStreams, EveryOperatorWithAnOptionalGeneratorIsIntercepted) {
  EXPECT_GE(internal::intercept_random_operators(), 60);
}

TEST(RandomStreams, OutsideOfStepsNothingChanges) {
  torch::manual_seed(3);
  const Tensor expected = torch::randn({4});
  torch::manual_seed(3);
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 3); });
  strategy.run([](ReplicaContext&) { return torch::randn({10}); });
  EXPECT_TRUE(torch::equal(torch::randn({4}), expected)) << "the caller's generator was drawn from";
}

TEST(RandomStreams, ManualSeedInsideAStepIsTheCallersBusinessAlone) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto draw = [](ReplicaContext&) {
    torch::manual_seed(1);
    return torch::randn({4});
  };
  const auto values = strategy.run(draw);
  EXPECT_FALSE(torch::equal(values[0], values[1]));
}

TEST(RandomStreams, AGeneratorThatIsGivenIsUsed) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto values =
      strategy.run([](ReplicaContext&) { return torch::randn({4}, at::make_generator<at::CPUGeneratorImpl>(11)); });
  EXPECT_TRUE(torch::equal(values[0], values[1]));
}

TEST(SharedRandom, AgreesOnAllReplicasAndDiffersBySteps) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 4});
  const auto draw = [](ReplicaContext& ctx) { return torch::randn({4}, ctx.shared_random()); };
  const auto first = strategy.run(draw);
  const auto second = strategy.run(draw);
  for (const Tensor& value : first) EXPECT_TRUE(torch::equal(value, first[0]));
  EXPECT_FALSE(torch::equal(first[0], second[0]));
}

TEST(Random, IsTheReplicasOwnStream) {
  MirroredStrategy a({.devices = lanes(1), .replicas = 2, .seed = 5});
  MirroredStrategy b({.devices = lanes(1), .replicas = 2, .seed = 5});
  const auto by_generator = a.run([](ReplicaContext& ctx) { return torch::randn({4}, ctx.random()); });
  const auto by_operator = b.run([](ReplicaContext&) { return torch::randn({4}); });
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(torch::equal(by_generator[r], by_operator[r]));
}

TEST(MergeCall, DrawsTheSameWhateverTheLanes) {
  const auto draw = [](int num_lanes) {
    MirroredStrategy strategy({.devices = lanes(num_lanes), .replicas = 4});
    return strategy.run(
        [](ReplicaContext& ctx) { return ctx.merge_call([](Strategy&) { return torch::randn({4}); }); })[3];
  };
  EXPECT_TRUE(torch::equal(draw(1), draw(4)));
}

TEST(Evaluate, DrawsFromStreamsOfItsOwn) {
  const auto step = [](ReplicaContext&) { return torch::randn({4}); };
  MirroredStrategy with({.devices = lanes(1), .replicas = 2});
  MirroredStrategy without({.devices = lanes(1), .replicas = 2});
  with.run(step);
  without.run(step);
  const auto first = with.evaluate(step);
  const auto second = with.evaluate(step);
  EXPECT_FALSE(torch::equal(first[0], second[0]));
  EXPECT_FALSE(torch::equal(first[0], first[1]));
  const auto after = with.run(step);
  const auto expected = without.run(step);
  EXPECT_FALSE(torch::equal(first[0], expected[0]));
  for (int r = 0; r < 2; ++r)
    EXPECT_TRUE(torch::equal(after[r], expected[r])) << "evaluation moved the training stream";
}

TEST(RandomStream, HasStatesThatA32BitSeedCannotTellApart) {
  // LibTorch's own seed keeps 32 bits: keys that agree in them must still differ.
  internal::RandomStream a;
  internal::RandomStream b;
  a.restart({.seed = 1});
  b.restart({.seed = 1 + (uint64_t{1} << 32)});
  EXPECT_FALSE(torch::equal(torch::randn({8}, a.generator()), torch::randn({8}, b.generator())));
}

TEST(RandomStreams, OfMergeFunctionsInTrainingDoNotDependOnEvaluations) {
  const auto draws_with = [](int evaluations) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 3, .seed = 7});
    const auto draw = [](ReplicaContext& ctx) { return ctx.merge_call([](Strategy&) { return torch::randn({4}); }); };
    std::vector<Tensor> drawn;
    for (int i = 0; i < evaluations; ++i) drawn.push_back(strategy.evaluate(draw)[0]);
    drawn.push_back(strategy.run(draw)[0]);
    return drawn;
  };
  const auto alone = draws_with(0);
  const auto after = draws_with(2);
  EXPECT_TRUE(torch::equal(alone.back(), after.back()));
  EXPECT_FALSE(torch::equal(after[0], after[1])) << "each evaluation draws anew";
  EXPECT_FALSE(torch::equal(after[0], after[2])) << "and none as a step does";
}

}  // namespace
}  // namespace lockstep
