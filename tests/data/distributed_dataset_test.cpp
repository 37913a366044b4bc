#include "lockstep/data/distributed_dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;

Dataset numbers(int64_t count) {
  return data::from_tensors(torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count));
}

/// All ids of an epoch by step and replica.
std::vector<std::vector<std::vector<int64_t>>> ids_of(const DistributedDataset& data, int64_t epoch) {
  std::vector<std::vector<std::vector<int64_t>>> steps;
  for (const auto& batch : data.epoch(epoch)) {
    auto& replicas = steps.emplace_back();
    for (const Batch& part : batch) {
      const auto* ids = part.ids.data_ptr<int64_t>();
      replicas.emplace_back(ids, ids + part.size());
    }
  }
  return steps;
}

class DistributedDatasetOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first, .seed = 3}};
};

TEST_P(DistributedDatasetOf, UsesEverySampleOfAnEpochOnce) {
  const auto data = strategy_.distribute(numbers(47), {.global_batch = 10, .shuffle = true});
  EXPECT_EQ(data.steps_per_epoch(), 5);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<int64_t> seen;
    for (const auto& step : ids_of(data, epoch)) {
      for (const auto& part : step) seen.insert(part.begin(), part.end());
    }
    EXPECT_EQ(seen.size(), 47u);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 47u);
  }
}

TEST_P(DistributedDatasetOf, BringsInputsTargetsAndSizesOfItsIds) {
  const auto data = strategy_.distribute(numbers(23), {.global_batch = 10, .shuffle = true});
  int64_t step = 0;
  for (const auto& batch : data.epoch(1)) {
    int64_t total = 0;
    for (const Batch& part : batch) {
      EXPECT_TRUE(torch::equal(part.target, part.ids));
      EXPECT_TRUE(torch::equal(part.input.view({-1}), part.ids.to(torch::kFloat)));
      EXPECT_EQ(part.ids.scalar_type(), torch::kLong);
      EXPECT_EQ(part.global_size, step < 2 ? 10 : 3);
      total += part.size();
    }
    EXPECT_EQ(total, step < 2 ? 10 : 3);
    ++step;
  }
  EXPECT_EQ(step, 3);
}

TEST_P(DistributedDatasetOf, HasEmptyPartsWhereThereAreFewerSamplesThanReplicas) {
  const auto data = strategy_.distribute(numbers(2), {.global_batch = 2});
  for (const auto& batch : data.epoch(0)) {
    for (const Batch& part : batch) {
      EXPECT_LE(part.size(), (2 + GetParam().first - 1) / GetParam().first);
      EXPECT_EQ(part.input.sizes(), (std::vector<int64_t>{part.size(), 1}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DistributedDatasetOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{3, 1},
                                           std::pair<int64_t, int>{4, 2}, std::pair<int64_t, int>{12, 2}));

TEST(DistributedDataset, OrderIsThatOfSeedAndEpochWhateverTheReplicas) {
  const auto flat = [](int64_t replicas, uint64_t seed, int64_t epoch) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas, .seed = seed});
    std::vector<int64_t> all;
    for (const auto& step : ids_of(strategy.distribute(numbers(30), {.global_batch = 7, .shuffle = true}), epoch)) {
      for (const auto& part : step) all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  EXPECT_EQ(flat(1, 3, 0), flat(4, 3, 0));
  EXPECT_NE(flat(1, 3, 0), flat(1, 3, 1));
  EXPECT_NE(flat(1, 3, 0), flat(1, 4, 0));
}

TEST(DistributedDataset, ASeedOfItsOwnOverridesTheStrategys) {
  MirroredStrategy a({.devices = lanes(1), .seed = 1});
  MirroredStrategy b({.devices = lanes(1), .seed = 2});
  const DistributeOptions options{.global_batch = 5, .shuffle = true, .seed = 9};
  EXPECT_EQ(ids_of(a.distribute(numbers(20), options), 0), ids_of(b.distribute(numbers(20), options), 0));
}

TEST(DistributedDataset, DropLeavesTheShortBatchOut) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers(23), {.global_batch = 10, .remainder = Remainder::kDrop});
  EXPECT_EQ(ids_of(data, 0).size(), 2u);
}

/// The samples of the epochs from that of the cursor to `last`, in the order in which they are given.
std::vector<int64_t> rest_of(const DistributedDataset& data, int64_t last) {
  std::vector<int64_t> samples;
  for (int64_t epoch = data.cursor().epoch; epoch <= last; ++epoch) {
    for (const auto& step : ids_of(data, epoch)) {
      for (const auto& part : step) samples.insert(samples.end(), part.begin(), part.end());
    }
  }
  return samples;
}

TEST_P(DistributedDatasetOf, ContinuesAtTheVeryNextSampleOnAnyNumberOfReplicasAndWithAnyBatch) {
  MirroredStrategy other({.devices = lanes(1), .replicas = 3, .seed = 3});
  const auto whole = rest_of(strategy_.distribute(numbers(23), {.global_batch = 5, .shuffle = true}), 2);
  for (int64_t stop = 0; stop < 10; ++stop) {  // 5 steps an epoch
    const auto stopped = strategy_.distribute(numbers(23), {.global_batch = 5, .shuffle = true});
    std::size_t given = 0;
    int64_t step = 0;
    for (int64_t epoch = 0; step < stop; ++epoch) {
      for (const auto& batch : stopped.epoch(epoch)) {
        given += static_cast<std::size_t>(batch.begin()->global_size);
        if (++step == stop) break;
      }
    }
    const auto continued = other.distribute(numbers(23), {.global_batch = 4, .shuffle = true});
    continued.seek(stopped.cursor());
    EXPECT_EQ(continued.cursor(), stopped.cursor());
    const auto rest = rest_of(continued, 2);
    EXPECT_EQ(rest, std::vector<int64_t>(whole.begin() + static_cast<std::ptrdiff_t>(given), whole.end())) << stop;
  }
}

TEST(DistributedDataset, HasNoStepsBeforeThePlaceOfASeekAndWholeEpochsAfterIt) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers(10), {.global_batch = 4, .remainder = Remainder::kDrop});
  const auto under_way = data.epoch(1);
  auto it = under_way.begin();
  data::Cursor cursor = data.cursor();
  EXPECT_EQ(cursor, (data::Cursor{1, 4, 10, strategy.seed()}));
  cursor.position = 3;
  data.seek(cursor);
  for (int repetition = 0; repetition < 2; ++repetition) {
    EXPECT_TRUE(ids_of(data, 0).empty());
    EXPECT_EQ(ids_of(data, 1), (std::vector<std::vector<std::vector<int64_t>>>{{{3, 4, 5, 6}}}));
    EXPECT_EQ(ids_of(data, 2).size(), 2u);
  }
  ++it;
  EXPECT_EQ(it->begin()->ids[0].item<int64_t>(), 4) << "an iterator under way goes on";
  data.seek({0, 0, 10, strategy.seed()});
  EXPECT_EQ(ids_of(data, 0).size(), 2u);
  data.seek(data.cursor());
  EXPECT_EQ(rest_of(data, 0).size(), 0u) << "what is left of a short batch is left out";
}

TEST(DistributedDataset, HasACursorOfTheSizeWithWhichItsEpochBegan) {
  class Growing final : public data::Source {
   public:
    int64_t size() const override { return size_; }
    Batch read(std::span<const int64_t> ids) const override {
      const auto count = static_cast<int64_t>(ids.size());
      return {torch::ones({count, 1}), torch::ones({count}), {}, 0};
    }
    std::string describe() const override { return "a folder that grows"; }
    std::atomic<int64_t> size_ = 10;
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto source = std::make_shared<Growing>();
  const auto data = strategy.distribute(Dataset(source), {.global_batch = 4, .shuffle = true});
  EXPECT_EQ(data.cursor().size, 10);
  const auto epoch = data.epoch(0);
  const auto it = epoch.begin();
  source->size_ = 20;
  EXPECT_EQ(data.cursor().size, 10);
  expect_error<DataError>([&] { data.seek(data.cursor()); }, "LS-DATA-CHANGED", {"10", "20"});
}

TEST(DistributedDataset, RefusesACursorThatDoesNotFitAndStaysWhereItIs) {
  MirroredStrategy strategy({.devices = lanes(1), .seed = 3});
  const auto data = strategy.distribute(numbers(10), {.global_batch = 4});
  const data::Cursor before{1, 2, 10, 3};
  data.seek(before);
  expect_error<DataError>([&] { data.seek({1, 2, 11, 3}); }, "LS-DATA-CHANGED", {"11", "10"});
  expect_error<UsageError>([&] { data.seek({1, 2, 10, 4}); }, "LS-STATE-MISFIT", {"seed 4", "seed 3"});
  expect_error<UsageError>([&] { data.seek({1, 2, 10, 3, true}); }, "LS-STATE-MISFIT", {"true", "false"});
  expect_error<UsageError>([&] { data.seek({-1, 2, 10, 3}); }, "LS-STATE-MISFIT", {"epoch -1"});
  expect_error<UsageError>([&] { data.seek({1, -2, 10, 3}); }, "LS-STATE-MISFIT", {"position -2"});
  expect_error<UsageError>([&] { data.seek({1, 11, 10, 3}); }, "LS-STATE-MISFIT", {"position 11"});
  EXPECT_EQ(data.cursor(), before);
  data.seek({1, 10, 10, 3});
  EXPECT_TRUE(ids_of(data, 1).empty());
}

TEST(DistributedDataset, TakesNoCursorOfAnotherPartOfTheData) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto of = [&](const Dataset& dataset) { return strategy.distribute(dataset, {.global_batch = 2}); };
  const auto cursor = of(data::slice(numbers(10), 0, 5)).cursor();
  of(data::slice(numbers(10), 0, 5)).seek(cursor);
  expect_error<DataError>([&] { of(data::slice(numbers(10), 5, 10)).seek(cursor); }, "LS-DATA-CHANGED");
  expect_error<DataError>([&] { of(numbers(10).shard(2, 0)).seek(cursor); }, "LS-DATA-CHANGED");
}

TEST(DistributedDataset, OutlivesItsStrategyAndItsEpochObject) {
  auto strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = lanes(1)});
  auto data = std::make_unique<DistributedDataset>(strategy->distribute(numbers(6), {.global_batch = 4}));
  strategy.reset();
  const auto epoch = data->epoch(0);
  data.reset();
  int64_t samples = 0;
  for (const auto& batch : epoch) samples += batch.begin()->size();
  EXPECT_EQ(samples, 6);
}

TEST(DistributedDataset, AnIteratorKeepsAliveWhatItReads) {
  MirroredStrategy strategy({.devices = lanes(1)});
  auto it = strategy.distribute(numbers(6), {.global_batch = 2}).epoch(0).begin();
  EXPECT_EQ(it->begin()->ids[0].item<int64_t>(), 0);
  ++it;
  EXPECT_EQ(it->begin()->ids[0].item<int64_t>(), 2);
  auto copy = it;
  ++it;
  ++it;
  EXPECT_TRUE(it == std::default_sentinel);
  ++it;
  EXPECT_TRUE(it == std::default_sentinel) << "and stays there";
  EXPECT_EQ(copy->begin()->ids[0].item<int64_t>(), 2) << "a copy is its own";
  const auto moved = std::move(copy);
  ++copy;  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(copy == std::default_sentinel);
}

TEST(DistributedDataset, AGlobalBatchBeyondAllNumbersIsOneStep) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto data =
      strategy.distribute(numbers(5), {.global_batch = std::numeric_limits<int64_t>::max(), .shuffle = true});
  EXPECT_EQ(data.steps_per_epoch(), 1);
  EXPECT_EQ(ids_of(data, 0).size(), 1u);
  EXPECT_EQ(ids_of(data, 0)[0][0].size() + ids_of(data, 0)[0][1].size(), 5u);
}

TEST(DistributedDataset, OfNoSamplesHasNoStepsAndOfOneSampleOne) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  EXPECT_EQ(ids_of(strategy.distribute(numbers(0), {.global_batch = 4, .shuffle = true}), 0).size(), 0u);
  const auto one = ids_of(strategy.distribute(numbers(1), {.global_batch = 4, .shuffle = true}), 7);
  EXPECT_EQ(one, (std::vector<std::vector<std::vector<int64_t>>>{{{0}, {}, {}}}));
  const auto data = strategy.distribute(numbers(9), {.global_batch = 4, .shuffle = true});
  const auto far = ids_of(data, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(far.size(), 3u);
  EXPECT_NE(far, ids_of(data, 0));
}

TEST(DistributedDataset, IsAClassMemberThatIsFilledLater) {
  DistributedDataset data;
  expect_error<UsageError>([&] { data.epoch(0); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { data.size(); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { data.steps_per_epoch(); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { data.global_batch(); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { data.cursor(); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { data.seek({}); }, "LS-EMPTY-HANDLE");
  EXPECT_TRUE(DistributedDataset::Iterator() == std::default_sentinel);
  MirroredStrategy strategy({.devices = lanes(1)});
  expect_error<UsageError>([&] { strategy.distribute(Dataset(), {.global_batch = 1}); }, "LS-EMPTY-HANDLE");
  data = strategy.distribute(numbers(3), {.global_batch = 2});
  EXPECT_EQ(data.size(), 3);
}

TEST(DistributedDataset, AStepThatCannotBeReadIsTriedAgain) {
  class Flaky final : public data::Source {
   public:
    int64_t size() const override { return 3; }
    Batch read(std::span<const int64_t> ids) const override {
      if (!ids.empty() && ids[0] == 1 && ++tries_ == 1) throw std::runtime_error("the disk is busy");
      const auto count = static_cast<int64_t>(ids.size());
      return {torch::ones({count, 1}), torch::ones({count}), {}, 0};
    }
    std::string describe() const override { return "a busy disk"; }

   private:
    mutable int tries_ = 0;
  };
  MirroredStrategy strategy({.devices = lanes(1)});
  auto it = strategy.distribute(Dataset(std::make_shared<Flaky>()), {.global_batch = 1}).epoch(0).begin();
  expect_error<DataError>([&] { ++it; }, "LS-SOURCE");
  EXPECT_EQ(it->begin()->ids[0].item<int64_t>(), 0) << "where it was";
  ++it;
  EXPECT_EQ(it->begin()->ids[0].item<int64_t>(), 1);
}

TEST(DistributedDataset, ASampleThatFailsOnOneWorkerReachesItsLoopAndEndsTheOthers) {
  const auto fails_on_11 = [](Batch sample) {
    if (sample.target.item<int64_t>() == 11) throw std::runtime_error("no such colour");
    return sample;
  };
  for (const int64_t prefetch : {0, 3}) {
    testing::run_workers({2, 2}, [&](Strategy& strategy) {
      const auto data = strategy.distribute(numbers(40).map(fails_on_11), {.global_batch = 4, .prefetch = prefetch});
      const auto train = [&] {
        for (const auto& batch : data.epoch(0)) {
          strategy.run(batch, [](ReplicaContext& ctx, const Batch& part) {
            ctx.all_reduce(Reduction::kSum, part.input.sum().view({1}));
          });
        }
      };
      if (strategy.worker_index() == 1) {
        expect_error<DataError>(train, "LS-MAP", {"sample 11", "no such colour"});
      } else {
        const auto error = testing::error_from<PeerError>(train);
        EXPECT_EQ(error.code(), "LS-PEER-LOST");
        EXPECT_EQ(error.failed().worker, 1);
      }
      EXPECT_EQ(strategy.step(), 2) << "samples 8 to 11 are of the step that cannot be made";
      return 0;
    });
  }
}

TEST(DistributedDataset, RefusesWhatCannotBe) {
  MirroredStrategy strategy({.devices = lanes(1)});
  expect_error<UsageError>([&] { strategy.distribute(numbers(3), {}); }, "LS-OPTION", {"distribute", ".global_batch"});
  expect_error<UsageError>([&] { strategy.distribute(numbers(3), {.global_batch = -1}); }, "LS-OPTION",
                           {"distribute", ".global_batch = -1"});
  expect_error<UsageError>([&] { strategy.distribute(numbers(3), {.global_batch = 1}).epoch(-1); }, "LS-OPTION",
                           {"epoch -1"});
  expect_error<UsageError>(
      [&] {
        data::from_tensors(torch::ones({3, 1}), torch::ones({4}));
      },
      "LS-BATCH", {"from_tensors", "input Float [3, 1]", "target Float [4]"});
  expect_error<UsageError>([&] { data::from_tensors(torch::ones({}), torch::ones({})); }, "LS-BATCH",
                           {"from_tensors", "input"});
  expect_error<UsageError>([&] { data::from_tensors(torch::Tensor(), torch::ones({3})); }, "LS-NOT-DENSE",
                           {"from_tensors", "undefined", "input"});
  expect_error<UsageError>([&] { data::slice(numbers(3), 1, 4); }, "LS-SAMPLE-RANGE", {"1 to 4"});
}

}  // namespace
}  // namespace lockstep
