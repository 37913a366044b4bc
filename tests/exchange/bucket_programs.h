// Programs whose sums leave during backward, and their comparison with one worker.
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/exchange/net_of_buckets.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep::testing::buckets {

constexpr const char* kDuringBackward = "sums, during backward";

inline torch::Tensor input(const ReplicaContext& ctx, int64_t samples = 70) {  // too many for factors
  const int64_t first = 1000 * ctx.step() + 100 * ctx.replica_id().value();
  return torch::arange(samples * 40).add(first).to(torch::kFloat).mul(0.37).sin().view({samples, 40});
}

/// A net, and an optimizer of it.
struct Program {
  explicit Program(Strategy& strategy, double rate = 0.01, const std::string& name = "model")
      : net(strategy.make_module([] { return Net(); }, {.name = name})),
        optimizer(strategy.make_optimizer(net, torch::optim::AdamWOptions(rate))) {}

  void backward(ReplicaContext& ctx) { net(ctx)->forward(input(ctx)).pow(2).mean().backward(); }

  Replicated<Net> net;
  Optimizer optimizer;
};

/// What all variables are after a program of some steps.
using Values = std::vector<torch::Tensor>;
inline Values values_of(Strategy& strategy) {
  Values values;
  for (const Variable& variable : strategy.variables()) values.push_back(variable.read().clone());
  return values;
}

/// What a program makes on a worker stays until the test has looked at it.
struct Kept {
  std::vector<std::shared_ptr<Program>> programs;
  std::vector<Optimizer> optimizers;

  Program& make(Strategy& strategy, double rate = 0.01) {
    const std::string name = "model" + std::to_string(programs.size());
    return *programs.emplace_back(std::make_shared<Program>(strategy, rate, name));
  }
};
using Steps = std::function<void(Strategy&, Kept&)>;

/// How many variables' sums travelled during backward in the last step, by worker.
inline std::vector<int64_t> expect_bits_of_one_worker(const WorkersCase& one, const Steps& steps,
                                                      const std::string& what) {
  const int64_t workers = one.workers;
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");  // else the workers share one update
  const auto run = [&](int64_t count, std::vector<int64_t>* during) {
    return run_workers({count, one.replicas, count == 1 ? 1 : one.lanes}, [&](Strategy& strategy) {
      Kept kept;
      steps(strategy, kept);
      if (during) {
        const std::string text = strategy.describe();
        int64_t found = 0;
        for (auto at = text.find(kDuringBackward); at != std::string::npos; at = text.find(kDuringBackward, at + 1))
          ++found;
        (*during)[static_cast<std::size_t>(strategy.worker_index())] = found;
      }
      return values_of(strategy);
    });
  };
  std::vector<int64_t> during(static_cast<std::size_t>(workers));
  const Values expected = run(1, nullptr).front();
  const auto all = run(workers, &during);
  for (std::size_t w = 0; w < all.size(); ++w) {
    EXPECT_EQ(all[w].size(), expected.size());
    for (std::size_t i = 0; i < std::min(all[w].size(), expected.size()); ++i) {
      EXPECT_TRUE(torch::equal(all[w][i], expected[i]))
          << what << ": value " << i << " on worker " << w << " of " << workers << ", greatest difference "
          << (all[w][i] - expected[i]).abs().max().to(torch::kDouble).item<double>() << " of "
          << expected[i].abs().max().to(torch::kDouble).item<double>();
    }
  }
  return during;
}

/// With one replica on each worker.
inline std::vector<int64_t> expect_bits_of_one_worker(int64_t workers, const Steps& steps, const std::string& what) {
  return expect_bits_of_one_worker(WorkersCase{workers, workers}, steps, what);
}

inline void expect_during_backward(const std::vector<int64_t>& found, int64_t expected) {
  for (std::size_t w = 0; w < found.size(); ++w) EXPECT_EQ(found[w], expected) << "worker " << w;
}

constexpr int64_t kAll = 5;  // parameters of Net

/// Runs `steps` steps with `between` between backward and the optimizer's step.
inline Steps with(int steps, std::function<void(Program&, ReplicaContext&, int step)> between) {
  return [steps, between](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < steps; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        program.backward(ctx);
        between(program, ctx, step);
        program.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
      });
    }
  };
}

}  // namespace lockstep::testing::buckets
