// Workers whose batches differ: where one worker distributes, splits or runs other samples than the others, that is an
// error on all of them, before any of them has used the others' values.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "tests/support/unlike_workers.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_refused;
using testing::is_last;

TEST(WorkersDifferInBatches, InTheOrderOrTheSizesOfBatches) {
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

TEST(WorkersDifferInBatches, InTheDataThatTheyDistribute) {
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

TEST(WorkersDifferInBatches, WithoutHarmWhereEachReadsItsWholeInput) {
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

TEST(WorkersDifferInBatches, InTheBatchThatARunIsGiven) {
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

TEST(WorkersDifferInBatches, InTheDataSetOfABatch) {
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

TEST(WorkersDifferInBatches, InTheBatchOfAStream) {
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

TEST(WorkersDifferInBatches, InTheTensorsThatTheySplit) {
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

TEST(WorkersDifferInBatches, InOneBatchOfSeveral) {
  expect_refused(
      [](Strategy& strategy) {
        const auto train = distributed(strategy, 12, {.global_batch = 4, .name = "train"});
        const auto extra = distributed(strategy, 8, {.global_batch = 4, .name = "extra"});
        strategy.run(batch_of(train, 0, 0), batch_of(extra, 0, is_last(strategy) ? 1 : 0),
                     [](ReplicaContext&, const Batch&, const Batch&) {});
      },
      "LS-WORKER-ORDER", {"'train'", "and samples at 0 to 3 of epoch 0 of 'extra'", "at 4 to 7 of epoch 0 of 'extra'"});
}

TEST(WorkersDifferInBatches, InABatchAndGoOnWithTheRightOne) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    const auto data = distributed(strategy, 12, {.global_batch = 4});
    testing::expect_error<UsageError>([&] { sum_of(strategy, batch_of(data, is_last(strategy) ? 1 : 0, 0)); },
                                      "LS-WORKER-ORDER");
    EXPECT_EQ(strategy.step(), 0);
    EXPECT_EQ(sum_of(strategy, batch_of(data, 0, 0)).item<float>(), 0 + 1 + 2 + 3);
    return 0;
  });
}

TEST(WorkersDifferInBatches, WithoutHarmInThePartsOfOneBatch) {
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

TEST(WorkersDifferInBatches, WithoutHarmInBatchesOfTheirOwn) {
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

TEST(WorkersDifferInBatches, WhereOneGivesBatchesOfItsOwnInTheFirstStepAndLater) {
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

TEST(WorkersDifferInBatches, InNothingThatOneWorkerHasToCompare) {
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2});
  EXPECT_EQ(batch_of(distributed(strategy, 12, {.global_batch = 4}), 0, 0)[ReplicaId(0)].origin, "");
  EXPECT_EQ(strategy.split(torch::ones({4}))[ReplicaId(1)].origin, "");
}

TEST(WorkersDifferInBatches, WhereOneCannotDistribute) {
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

}  // namespace
}  // namespace lockstep
