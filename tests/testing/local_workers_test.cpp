// The kit for users' tests on several workers: it passes right programs and names what is wrong with others.
#include "lockstep/testing/local_workers.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::CompareWorkersOptions;
using testing::expect_error;
using testing::expect_same_as_one_worker;
using testing::LocalWorkers;
using testing::TrainingProgram;

/// Two epochs with dropout and an on-read count of samples. `part_of` may replace a replica's part.
TrainingProgram program(const std::function<Batch(const Strategy&, const Batch&)>& part_of) {
  return [=](Strategy& strategy, const std::function<void()>& observe) {
    const auto model = strategy.make_module([] { return testing::make_program("mlp"); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
    const auto seen =
        strategy.make_variable(torch::zeros({}, torch::kLong), {.name = "seen",
                                                                .trainable = false,
                                                                .synchronization = VariableSynchronization::kOnRead,
                                                                .aggregation = VariableAggregation::kSum});
    const auto data = strategy.distribute(testing::make_data("mlp", 50), {.global_batch = 20, .shuffle = true});
    observe();
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& given) {
          const Batch part = part_of(strategy, given);
          ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
          optimizer.step(ctx);
          seen.assign_add(ctx, torch::tensor(part.size()));
        });
        observe();
      }
    }
  };
}

TEST(LocalWorkers, TrainWhatOneWorkerTrains) {
  expect_same_as_one_worker(program([](const Strategy&, const Batch& part) { return part; }));
  expect_same_as_one_worker(program([](const Strategy&, const Batch& part) { return part; }),
                            {.replicas = 5, .workers = {5}, .seed = 3});
}

TEST(LocalWorkers, AreNamedWhereTheyTrainSomethingElse) {
  const auto by_worker = [](const Strategy& strategy, const Batch& part) {
    Batch other = part;
    if (strategy.worker_index() == 1) other.input = part.input + 1;
    return other;
  };
  expect_error<DivergenceError>([&] { expect_same_as_one_worker(program(by_worker)); }, "LS-WORKERS-DECIDE",
                                {"after step 0", "one worker", "worker 0 of 2", "worker_index()"});
}

TEST(LocalWorkers, AreNotBlamedForAProgramThatDoesNotRepeatItself) {
  int runs = 0;
  const TrainingProgram counts = [&](Strategy& strategy, const std::function<void()>& observe) {
    const double value = strategy.on_chief([&] { return static_cast<double>(runs++); });
    const Variable variable = strategy.make_variable(torch::full({2}, value), {.name = "counted"});
    observe();
    strategy.run([](ReplicaContext&) {});
    observe();
  };
  expect_error<DivergenceError>([&] { expect_same_as_one_worker(counts); }, "LS-NOT-REPEATABLE", {"counted"});
}

TEST(LocalWorkers, EachHaveTheirOwnThreadAndStrategy) {
  std::vector<int64_t> replicas(3);
  LocalWorkers({.workers = 3, .replicas = 7, .seed = 1}).run([&](Strategy& strategy) {
    EXPECT_EQ(strategy.num_workers(), 3);
    EXPECT_EQ(strategy.num_replicas(), 7);
    int64_t own = 0;
    for (const int64_t one : strategy.run([](ReplicaContext&) { return int64_t{1}; })) own += one;
    replicas[static_cast<std::size_t>(strategy.worker_index())] = own;
  });
  EXPECT_EQ(replicas, (std::vector<int64_t>{3, 2, 2}));
}

TEST(LocalWorkers, GiveTheErrorOfTheWorkerThatFailed) {
  const LocalWorkers workers({.workers = 3, .replicas = 3});
  EXPECT_THROW(workers.run([](Strategy& strategy) {
    if (strategy.worker_index() == 2) throw std::out_of_range("no such file");
    strategy.run([](ReplicaContext&) {});
  }),
               std::out_of_range);
  workers.run([](Strategy& strategy) { strategy.run([](ReplicaContext&) {}); });  // and may be used again
}

TEST(LocalWorkers, AreAtLeastOne) {
  expect_error<UsageError>([] { LocalWorkers({.workers = 0}); }, "LS-OPTION", {"0 workers"});
}

TEST(LocalWorkers, AreEachOnAHostOrNoneIsGiven) {
  expect_error<UsageError>([] { LocalWorkers({.workers = 3, .hosts = {0, 0}}); }, "LS-OPTION", {"hosts of 2 workers"});
}

}  // namespace
}  // namespace lockstep
