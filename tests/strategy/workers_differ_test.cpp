// Workers whose programs differ: what one worker does otherwise than the others is an error on all of them, before any
// of them has used the others' values.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep {
namespace {

using Step = std::function<void(Strategy&)>;

bool is_last(const Strategy& strategy) { return strategy.worker_index() == strategy.num_workers() - 1; }

void expect_refused(const Step& body, std::string_view code, std::initializer_list<std::string_view> values) {
  testing::expect_error_on_all<UsageError>({3, 3, 1}, body, code, values);
}

void expect_step_refused(const Step& body, std::string_view code, std::initializer_list<std::string_view> values) {
  testing::expect_step_error_on_all<UsageError>({2, 4, 1}, body, code, values);
}

VariableOptions on_read(const char* name) {
  return {.name = name, .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kMean};
}

TEST(WorkersDiffer, InTheVariableThatTheyRead) {
  expect_refused(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::ones({2}), on_read("a"));
        const Variable b = strategy.make_variable(torch::full({2}, 100.0), on_read("b"));
        (is_last(strategy) ? b : a).read();
      },
      "LS-WORKER-ORDER", {"Variable::read of 'a'", "Variable::read of 'b'", "worker 2"});
}

TEST(WorkersDiffer, InTheMetricThatTheyAsk) {
  expect_refused(
      [](Strategy& strategy) {
        const metrics::Mean loss(strategy, "loss");
        const metrics::Mean norm(strategy, "norm");
        (is_last(strategy) ? norm : loss).reset();
      },
      "LS-WORKER-ORDER", {"'loss'", "'norm'", "worker 2"});
}

TEST(WorkersDiffer, InTheVariableThatTheyUpdate) {
  expect_refused(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::ones({2}), {.name = "a"});
        const Variable b = strategy.make_variable(torch::ones({2}), {.name = "b"});
        strategy.update_from(1, is_last(strategy) ? b : a, torch::full({2}, 8.0));
      },
      "LS-WORKER-ORDER", {"Strategy::update_from of 'a'", "Strategy::update_from of 'b'"});
}

TEST(WorkersDiffer, InTheOrderOrTheSizesOfBatches) {
  const auto refused = [](DistributeOptions last, std::initializer_list<std::string_view> values) {
    expect_refused(
        [last](Strategy& strategy) {
          const auto data = data::from_tensors(torch::arange(12), torch::arange(12));
          strategy.distribute(data, is_last(strategy) ? last : DistributeOptions{.global_batch = 4, .shuffle = true});
        },
        "LS-WORKER-ORDER", values);
  };
  refused({.global_batch = 4, .shuffle = true, .seed = 7}, {"worker 2 came to", ".seed = 7"});
  refused({.global_batch = 4}, {".shuffle = true", ".shuffle = false"});
  refused({.global_batch = 6, .shuffle = true}, {".global_batch = 4", ".global_batch = 6"});
  refused({.global_batch = 4, .shuffle = true, .remainder = Remainder::kDrop},
          {".remainder = keep", ".remainder = drop"});
}

TEST(WorkersDiffer, InTheDataThatTheyDistribute) {
  expect_refused(
      [](Strategy& strategy) {
        const int64_t samples = is_last(strategy) ? 10 : 12;
        strategy.distribute(data::from_tensors(torch::arange(samples), torch::arange(samples)), {.global_batch = 4});
      },
      "LS-WORKER-ORDER", {"12 samples", "10 samples"});
  expect_refused(
      [](Strategy& strategy) {
        const int64_t first = is_last(strategy) ? 1 : 0;  // as many samples of another content
        const auto samples = torch::arange(first, first + 12);
        strategy.distribute(data::from_tensors(samples, samples), {.global_batch = 4});
      },
      "LS-WORKER-ORDER", {"12 samples of the digest"});
  expect_refused(
      [](Strategy& strategy) {
        const auto stream = data::from_dataset(data::from_tensors(torch::arange(12), torch::arange(12)));
        strategy.distribute(stream, {.global_batch = is_last(strategy) ? 3 : 4});
      },
      "LS-WORKER-ORDER", {"a stream", ".global_batch = 3"});
}

TEST(WorkersDiffer, WithoutHarmWhereEachReadsItsWholeInput) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    const auto data = data::from_tensors(torch::arange(12), torch::arange(12));
    const auto seed = static_cast<uint64_t>(strategy.worker_index());
    strategy.distribute(data, {.global_batch = 4, .shuffle = true, .seed = seed, .sharding = Sharding::kOff});
    return 0;
  });
}

DistributedDataset distributed(Strategy& strategy, int64_t samples, DistributeOptions options) {
  const auto numbers = torch::arange(samples, torch::kFloat);
  return strategy.distribute(data::from_tensors(numbers, numbers), std::move(options));
}

/// The `step`-th batch of an epoch.
PerReplica<Batch> batch_of(const DistributedDataset& data, int64_t epoch, int64_t step) {
  const auto steps = data.epoch(epoch);
  auto at = steps.begin();
  for (; step > 0; --step) ++at;
  return *at;
}

torch::Tensor sum_of(Strategy& strategy, const PerReplica<Batch>& batch) {
  const auto sums = strategy.run(batch, [](ReplicaContext& /*ctx*/, const Batch& part) { return part.input.sum(); });
  return strategy.reduce(Reduction::kSum, sums);
}

TEST(WorkersDiffer, InTheBatchThatARunIsGiven) {
  const auto refused = [](int64_t epoch, int64_t step, std::initializer_list<std::string_view> values) {
    expect_refused(
        [=](Strategy& strategy) {
          const auto data = distributed(strategy, 12, {.global_batch = 4, .shuffle = true, .seed = 7});
          sum_of(strategy, is_last(strategy) ? batch_of(data, epoch, step) : batch_of(data, 0, 0));
        },
        "LS-WORKER-ORDER", values);
  };
  refused(1, 0, {"workers 0 to 1 came to Strategy::run of", "at 0 to 3 of epoch 0", "at 0 to 3 of epoch 1"});
  refused(0, 2, {"at 0 to 3 of epoch 0", "at 8 to 11 of epoch 0", "12 samples by seed 7"});
  expect_refused(
      [](Strategy& strategy) {
        const auto data = distributed(strategy, 12, {.global_batch = 4});
        strategy.evaluate(batch_of(data, is_last(strategy) ? 1 : 0, 0), [](ReplicaContext&, const Batch&) {});
      },
      "LS-WORKER-ORDER", {"Strategy::evaluate", "of epoch 0", "of epoch 1"});
}

TEST(WorkersDiffer, InTheDataSetOfABatch) {
  const auto refused = [](int64_t samples, DistributeOptions options, std::initializer_list<std::string_view> values) {
    expect_refused(
        [=](Strategy& strategy) {
          const auto train = distributed(strategy, 12, {.global_batch = 4, .name = "train"});
          const auto other = distributed(strategy, samples, options);
          sum_of(strategy, batch_of(is_last(strategy) ? other : train, 0, 0));
        },
        "LS-WORKER-ORDER", values);
  };
  refused(12, {.global_batch = 6, .name = "wide"}, {"at 0 to 3 of epoch 0", "at 0 to 5 of epoch 0"});
  refused(16, {.global_batch = 4}, {"'train' (12 samples", "16 samples"});
}

TEST(WorkersDiffer, InTheBatchOfAStream) {
  expect_refused(
      [](Strategy& strategy) {
        const auto numbers = torch::arange(12, torch::kFloat);
        const auto data =
            strategy.distribute(data::from_dataset(data::from_tensors(numbers, numbers)), {.global_batch = 4});
        const auto first = batch_of(data, 0, 0);
        const auto second = batch_of(data, 0, 1);
        sum_of(strategy, is_last(strategy) ? second : first);
      },
      "LS-WORKER-ORDER", {"at 0 to 3 of epoch 0", "at 4 to 7 of epoch 0"});
}

TEST(WorkersDiffer, InTheTensorsThatTheySplit) {
  expect_refused(
      [](Strategy& strategy) {
        sum_of(strategy, strategy.split(torch::ones({is_last(strategy) ? 6 : 8, 2})));
      },
      "LS-WORKER-ORDER", {"a split of 8 rows", "a split of 6 rows"});
  expect_refused(  // as by a loader of its own seed
      [](Strategy& strategy) {
        const auto rows = torch::arange(8, torch::kFloat);
        sum_of(strategy, strategy.split(is_last(strategy) ? rows.flip(0) : rows));
      },
      "LS-WORKER-ORDER", {"workers 0 to 1 came to", "a split of 8 rows with the digest"});
}

TEST(WorkersDiffer, InOneBatchOfSeveral) {
  expect_refused(
      [](Strategy& strategy) {
        const auto train = distributed(strategy, 12, {.global_batch = 4, .name = "train"});
        const auto extra = distributed(strategy, 8, {.global_batch = 4, .name = "extra"});
        strategy.run(batch_of(train, 0, 0), batch_of(extra, 0, is_last(strategy) ? 1 : 0),
                     [](ReplicaContext&, const Batch&, const Batch&) {});
      },
      "LS-WORKER-ORDER", {"'train'", "and samples at 0 to 3 of epoch 0 of 'extra'", "at 4 to 7 of epoch 0 of 'extra'"});
}

TEST(WorkersDiffer, InABatchAndGoOnWithTheRightOne) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    const auto data = distributed(strategy, 12, {.global_batch = 4});
    testing::expect_error<UsageError>([&] { sum_of(strategy, batch_of(data, is_last(strategy) ? 1 : 0, 0)); },
                                      "LS-WORKER-ORDER");
    EXPECT_EQ(strategy.step(), 0);
    EXPECT_EQ(sum_of(strategy, batch_of(data, 0, 0)).item<float>(), 0 + 1 + 2 + 3);
    return 0;
  });
}

TEST(WorkersDiffer, WithoutHarmInThePartsOfOneBatch) {
  testing::run_workers({3, 4, 1}, [](Strategy& strategy) {
    // The last batch has 2 samples: the last replicas have none.
    const auto data = distributed(strategy, 10, {.global_batch = 4, .shuffle = true});
    double sum = 0;
    for (const auto& batch : data.epoch(2)) sum += sum_of(strategy, batch).item<double>();
    EXPECT_EQ(sum, 45);
    EXPECT_EQ(sum_of(strategy, strategy.split(torch::ones({2}))).item<float>(), 2);
    return 0;
  });
}

TEST(WorkersDiffer, WithoutHarmInBatchesOfTheirOwn) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    const int64_t size = is_last(strategy) ? 3 : 1;
    const auto own =
        strategy.per_replica([&](ReplicaId) { return Batch{.input = torch::ones({size}), .global_size = 8}; });
    EXPECT_EQ(sum_of(strategy, own).item<float>(), 8);

    const auto order = distributed(strategy, 12, {.global_batch = 4, .sharding = Sharding::kOff});
    sum_of(strategy, batch_of(order, is_last(strategy) ? 1 : 0, 0));
    return 0;
  });
}

TEST(WorkersDiffer, WhereOneGivesBatchesOfItsOwnInTheFirstStepAndLater) {
  for (const int64_t steps_before : {0, 1}) {
    testing::expect_error_on_all<UsageError>({3, 3, 1},
                                             [=](Strategy& strategy) {
                                               const auto data = distributed(strategy, 12, {.global_batch = 4});
                                               for (int64_t step = 0; step < steps_before; ++step)
                                                 sum_of(strategy, batch_of(data, 0, 0));
                                               const auto own = strategy.per_replica([](ReplicaId) {
                                                 return Batch{.input = torch::ones({2}), .global_size = 6};
                                               });
                                               sum_of(strategy, is_last(strategy) ? own : batch_of(data, 0, 0));
                                             },
                                             "LS-WORKER-ORDER",
                                             {"workers 0 to 1 came to Strategy::run of 'samples at 0 to 3 of epoch 0",
                                              "worker 2 came to Strategy::run of 'its own batches'"});
  }
}

TEST(WorkersDiffer, InNothingThatOneWorkerHasToCompare) {
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2});
  EXPECT_EQ(batch_of(distributed(strategy, 12, {.global_batch = 4}), 0, 0)[ReplicaId(0)].origin, "");
  EXPECT_EQ(strategy.split(torch::ones({4}))[ReplicaId(1)].origin, "");
}

TEST(WorkersDiffer, WhereOneCannotDistribute) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    const auto data = data::from_tensors(torch::arange(12), torch::arange(12));
    if (is_last(strategy)) {
      EXPECT_THROW(strategy.distribute(data, {.global_batch = -1}), UsageError);
    } else {
      testing::expect_error<PeerError>([&] { strategy.distribute(data, {.global_batch = 4}); }, "LS-PEER-FAILED",
                                       {"worker 1", ".global_batch"});
    }
    EXPECT_EQ(strategy.distribute(data, {.global_batch = 4}).steps_per_epoch(), 3);
    return 0;
  });
}

TEST(WorkersDiffer, InTheNameOfAVariableOrModule) {
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_variable(torch::ones({2}), {.name = is_last(strategy) ? "bias" : "weight"});
      },
      "LS-WORKER-ORDER", {"'bias'", "'weight'"});
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_module([] { return torch::nn::Linear(2, 2); }, {.name = is_last(strategy) ? "b" : "a"});
      },
      "LS-WORKER-ORDER", {"'a'", "'b'"});
}

/// A step with an optimizer that `change` may make unlike on the last worker.
Step stepping(std::function<Optimizer(Strategy&, const Variable&, const Variable&)> make) {
  return [make = std::move(make)](Strategy& strategy) {
    const Variable u = strategy.make_variable(torch::ones({2}), {.name = "u"});
    const Variable v = strategy.make_variable(torch::ones({2}), {.name = "v"});
    const Optimizer optimizer = make(strategy, u, v);
    strategy.run([&](ReplicaContext& ctx) {
      (u.value(ctx) + v.value(ctx) * 2).sum().backward();
      optimizer.step(ctx);
    });
  };
}

TEST(WorkersDiffer, InTheVariablesOfAnOptimizer) {
  using torch::optim::SGDOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(std::vector<Variable>{is_last(strategy) ? v : u},
                                                       SGDOptions(1.0));
                      }),
                      "LS-WORKER-ORDER", {"'u'", "'v'", "worker 1"});
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(
                            is_last(strategy) ? std::vector<Variable>{u, v} : std::vector<Variable>{u},
                            SGDOptions(1.0));
                      }),
                      "LS-WORKER-ORDER", {"'u' and 0 more variables", "'u' and 1 more variables"});
}

TEST(WorkersDiffer, InTheOptionsOfAnOptimizer) {
  using torch::optim::SGDOptions;
  const auto with = [](const SGDOptions& usual, const SGDOptions& last) {
    return stepping([=](Strategy& strategy, const Variable& u, const Variable& v) {
      return strategy.make_optimizer({u, v}, is_last(strategy) ? last : usual);
    });
  };
  expect_step_refused(with(SGDOptions(1.0), SGDOptions(0.5)), "LS-WORKER-ORDER",
                      {"learning rate 1", "learning rate 0.5", "worker 1"});
  expect_step_refused(with(SGDOptions(1.0).momentum(0.9), SGDOptions(1.0).momentum(0.8)), "LS-WORKER-ORDER",
                      {"worker 0", "worker 1", "digest"});
  using torch::optim::AdamOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer({u, v}, AdamOptions(0.1).amsgrad(is_last(strategy)));
                      }),
                      "LS-WORKER-ORDER", {"worker 0", "worker 1", "digest"});
}

TEST(WorkersDiffer, InAnOptionThatTheFirstStepsDoNotShow) {
  using torch::optim::AdagradOptions;
  using torch::optim::AdamWOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(
                            {u, v}, AdagradOptions(0.1).initial_accumulator_value(is_last(strategy) ? 0.5 : 0));
                      }),
                      "LS-WORKER-ORDER", {"worker 0", "worker 1", "digest"});
  // A warm-up begins at a rate of 0, at which nothing decays.
  expect_step_refused(
      stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
        return strategy.make_optimizer({u, v}, AdamWOptions(0).weight_decay(is_last(strategy) ? 0.5 : 0.25));
      }),
      "LS-WORKER-ORDER", {"worker 0", "worker 1", "digest"});
}

TEST(WorkersDiffer, InALearningRateThatWasSet) {
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        const Optimizer optimizer = strategy.make_optimizer({u, v}, torch::optim::SGDOptions(1.0));
                        optimizer.set_learning_rate(is_last(strategy) ? 0.25 : 0.125);
                        return optimizer;
                      }),
                      "LS-WORKER-ORDER", {"learning rate 0.25", "learning rate 0.125"});
}

TEST(WorkersDiffer, InAFrozenParameter) {
  expect_step_refused(
      [](Strategy& strategy) {
        const Variable u = strategy.make_variable(torch::ones({2}), {.name = "u"});
        const Variable v = strategy.make_variable(torch::ones({2}), {.name = "v"});
        const Optimizer optimizer = strategy.make_optimizer({u, v}, torch::optim::SGDOptions(1.0));
        strategy.run([&](ReplicaContext& ctx) {
          if (is_last(strategy)) v.value(ctx).requires_grad_(false);
          (u.value(ctx) + v.value(ctx)).sum().backward();
          optimizer.step(ctx);
        });
      },
      "LS-FROZEN-UNLIKE", {"variable 'v'", "worker 0", "worker 1"});
}

}  // namespace
}  // namespace lockstep
