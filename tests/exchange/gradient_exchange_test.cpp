// What the gradients of a step cost on the wire, by the form in which they travel.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/exchange/factor_exchange.h"
#include "lockstep/lockstep.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::FactoredGradientsAre;

/// Counts the bytes that one worker gives to exchange() for the others.
class CountingWorld final : public World {
 public:
  CountingWorld(std::shared_ptr<World> world, int64_t& bytes) : world_(std::move(world)), bytes_(bytes) {}
  int64_t num_workers() const override { return world_->num_workers(); }
  int64_t worker_index() const override { return world_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override { return world_->agree(mine); }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    for (std::size_t w = 0; w < to.size(); ++w) {
      if (static_cast<int64_t>(w) != worker_index()) bytes_ += static_cast<int64_t>(to[w].size());
    }
    world_->exchange(to, from);
  }
  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

 private:
  const std::shared_ptr<World> world_;
  int64_t& bytes_;
};

class OnCountedWorld final : public Strategy {
 public:
  OnCountedWorld(std::shared_ptr<World> world, int64_t replicas)
      : Strategy(StrategySetup{.name = "OnCountedWorld",
                               .topology = std::make_shared<HostTopology>(testing::lanes(1), replicas, false),
                               .world = std::move(world),
                               .seed = 3}) {}
};

constexpr int64_t kRows = 301;
constexpr int64_t kColumns = 200;
constexpr int64_t kSamples = 3;  // of each replica

/// How many bytes each worker sends in one step that trains a matrix of [kRows, kColumns] and a vector of kRows.
std::vector<int64_t> bytes_of_a_step(int64_t workers, int64_t replicas, const char* factored) {
  const FactoredGradientsAre scope(factored);
  ThreadWorkers team(workers, std::chrono::seconds(60));
  std::vector<int64_t> sent(static_cast<std::size_t>(workers));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w, world = team.world(w)] {
      int64_t bytes = 0;
      OnCountedWorld strategy(std::make_shared<CountingWorld>(world, bytes), replicas);
      const Variable weight = strategy.make_variable(torch::ones({kRows, kColumns}), {.name = "weight"});
      const Variable bias = strategy.make_variable(torch::zeros({kRows}), {.name = "bias"});
      const Optimizer optimizer = strategy.make_optimizer({weight, bias}, torch::optim::SGDOptions(0.1));
      const int64_t before = bytes;
      strategy.run([&](ReplicaContext& ctx) {
        const auto x = torch::full({kSamples, kColumns}, 0.5 + static_cast<double>(ctx.replica_id().value()));
        torch::linear(x, weight.value(ctx), bias.value(ctx)).pow(2).sum().backward();
        optimizer.step(ctx);
      });
      sent[static_cast<std::size_t>(w)] = bytes - before;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return sent;
}

TEST(GradientExchange, SendsTwiceTheGradientLessAShareOfOneWorkerAsSums) {
  constexpr double kGradient = 4.0 * (kRows * kColumns + kRows);
  for (const int64_t workers : {2, 4}) {
    for (const int64_t replicas : {workers, 2 * workers}) {  // more replicas of a worker cost nothing
      const double allowed = 2.0 * static_cast<double>(workers - 1) / static_cast<double>(workers) * kGradient;
      double all = 0;
      for (const int64_t bytes : bytes_of_a_step(workers, replicas, "off")) {
        EXPECT_GT(bytes, 0);
        all += static_cast<double>(bytes);
      }
      // Together: how even the slices of so small a gradient are is not what is promised.
      EXPECT_LE(all, 1.02 * allowed * static_cast<double>(workers))
          << workers << " workers, " << replicas << " replicas";
      EXPECT_GE(all, 0.98 * allowed * static_cast<double>(workers))
          << workers << " workers, " << replicas << " replicas";
    }
  }
}

TEST(GradientExchange, SendsTheFactorsOfFewSamplesInPlaceOfTheGradient) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  for (const int64_t workers : {2, 4}) {
    for (const int64_t bytes : bytes_of_a_step(workers, 2 * workers, "always")) {
      // Factors are filled up to whole groups of rows and panels of columns; the bias travels as sums.
      const double factors = 4.0 * 2 * kSamples * (kRows + kColumns);
      const double bias = 4.0 * kRows;
      EXPECT_LE(bytes, static_cast<double>(workers - 1) * (1.2 * factors + 2 * bias)) << workers << " workers";
      EXPECT_GE(bytes, static_cast<double>(workers - 1) * factors) << workers << " workers";
    }
  }
}

/// The weight after three steps of 4 replicas with so many samples each. Where `replica` is one of theirs, it reads its
/// gradient before the optimizer's step, and so has it written.
torch::Tensor trained(int64_t workers, int64_t samples, int64_t replica, const char* factored) {
  const FactoredGradientsAre scope(factored);
  const auto weights = testing::run_workers({workers, 4}, [&](Strategy& strategy) {
    const Variable weight =
        strategy.make_variable(torch::arange(40 * 30).to(torch::kFloat).sin().view({40, 30}), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer({weight}, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const auto x = torch::arange(samples * 30).add(100 * ctx.replica_id() + step).to(torch::kFloat).cos();
        torch::linear(x.view({samples, 30}), weight.value(ctx)).pow(2).sum().backward();
        if (ctx.replica_id() == replica) weight.value(ctx).grad().norm();
        optimizer.step(ctx, {.clip_global_norm = 1.0});
      });
    }
    return weight.read();
  });
  for (const auto& one : weights) EXPECT_TRUE(torch::equal(one, weights.front()));
  return weights.front();
}

TEST(GradientExchange, AddsUpFactorsThatDoNotTravel) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  constexpr int64_t kNone = -1;
  for (const auto& [samples, replica] : {std::pair<int64_t, int64_t>{64, kNone}, {8, 0}, {8, 3}, {8, kNone}}) {
    const torch::Tensor expected = trained(1, samples, replica, "off");
    for (const int64_t workers : {2, 3, 4}) {
      for (const char* memory : {"auto", "off"}) {  // workers share the update, or send each other what it adds
        const testing::EnvironmentScope scope("LOCKSTEP_HOST_MEMORY", memory);
        EXPECT_TRUE(torch::equal(trained(workers, samples, replica, "always"), expected))
            << workers << " workers, " << samples << " samples, replica " << replica << " reads its gradient, memory "
            << "of the host " << memory;
      }
    }
  }
}

TEST(GradientExchange, AddsGradientsInHalfPrecisionAsOneWorkerDoes) {
  const auto trained_in = [](int64_t workers, at::ScalarType type) {
    return testing::run_workers({workers, 8}, [&](Strategy& strategy) {
      const Variable half = strategy.make_variable(torch::ones({500}, type), {.name = "half"});
      const Variable full = strategy.make_variable(torch::ones({500}), {.name = "full"});
      const Optimizer optimizer = strategy.make_optimizer({half, full}, torch::optim::SGDOptions(0.3).momentum(0.9));
      for (int step = 0; step < 4; ++step) {
        strategy.run([&](ReplicaContext& ctx) {
          const auto scale = testing::value_of(ctx.replica_id().value() + step, torch::kFloat, {15}).repeat({34});
          const auto x = scale.slice(0, 0, 500);
          ((half.value(ctx).to(torch::kFloat) * x).tanh() * (full.value(ctx) + x)).sum().backward();
          optimizer.step(ctx, {.clip_global_norm = 20.0, .check_finite = true});
        });
      }
      return torch::cat({half.read().to(torch::kFloat), full.read()});
    });
  };
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    const torch::Tensor expected = trained_in(1, type).front();
    ASSERT_TRUE(torch::isfinite(expected).all().item<bool>());
    for (const int64_t workers : {2, 3, 8}) {
      for (const torch::Tensor& one : trained_in(workers, type)) {
        EXPECT_TRUE(torch::equal(one, expected)) << c10::toString(type) << ", " << workers << " workers";
      }
    }
  }
}

TEST(TravelsAsFactors, WhereTheseAreSmallerThanTheSumsAndOfFewSamples) {
  const auto of = [](std::vector<uint32_t> samples) {
    std::vector<internal::FactorsOutline> all;
    for (const uint32_t count : samples) {
      all.emplace_back();
      if (count > 0) all.back().terms.push_back({count, internal::ZeroSums::kPositive});
    }
    return all;
  };
  EXPECT_TRUE(internal::travels_as_factors(1024, 1024, of({8, 8}), 2 * 1024 * 1024));
  EXPECT_TRUE(internal::travels_as_factors(1024, 1024, of({8, 0, 8}), 2 * 1024 * 1024));
  EXPECT_FALSE(internal::travels_as_factors(1024, 1024, of({0, 0}), 2 * 1024 * 1024)) << "nothing to send";
  EXPECT_FALSE(internal::travels_as_factors(1024, 1024, of({128, 128}), 2 * 1024 * 1024))
      << "the products take too long";
  EXPECT_FALSE(internal::travels_as_factors(16, 16, of({8, 8}), 2 * 16 * 16)) << "as large as the sums";
  EXPECT_TRUE(internal::travels_as_factors(64, 64, of({24, 24}), 2 * 64 * 64));
  EXPECT_FALSE(internal::travels_as_factors(64, 64, of({24, 24}), 64 * 64)) << "sums take half the bytes";
}

}  // namespace
}  // namespace lockstep
