// Samples of a data set keep their ids through its stages.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/data/dealt_numbers.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::lanes;
using testing::Numbers;
using testing::numbers;

Numbers numbers_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.to(torch::kLong).contiguous().view({-1});
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

/// The ids of a data set whose samples are their own numbers in `of`, and these numbers.
std::pair<Numbers, Numbers> ids_and_samples(const Dataset& data) {
  const Batch all = data.read_all();
  return {numbers_of(all.ids), numbers_of(all.target)};
}

TEST(Ids, SayWhichSampleItIsBehindEachStage) {
  const Dataset all = numbers(12);
  const auto even = [](const Batch& one) { return one.target.item<int64_t>() % 2 == 0; };
  const auto same = [](Batch one) { return one; };
  for (const Dataset& data : {all.shard(3, 1), all.shuffle(4), all.take(5), all.skip(5), all.filter(even),
                              data::slice(all, 2, 9), all.shard(2, 1).shuffle(3).skip(1).take(4),
                              all.shuffle(3).map(same).shard(2, 0), all.skip(3).cache(), all.skip(3).map_rows(same),
                              all.skip(3).zip(all.skip(4)), all.skip(3).prefetch(2), all.shuffle(1).at_epoch(7, 5)}) {
    const auto [ids, samples] = ids_and_samples(data);
    EXPECT_EQ(ids, samples) << data.source()->describe();
  }
  EXPECT_NE(ids_and_samples(all.shuffle(4)).first, ids_and_samples(all.shuffle(4).at_epoch(0, 1)).first);
}

TEST(Ids, ReachFunctionsOfThePipeline) {
  Numbers seen;
  const auto look = [&](Batch one) {
    for (const int64_t id : numbers_of(one.ids)) seen.push_back(id);
    return one;
  };
  numbers(10).skip(6).map(look).read_all();
  EXPECT_EQ(seen, (Numbers{6, 7, 8, 9}));
  seen.clear();
  numbers(10).skip(6).map_rows(look).read_all();
  EXPECT_EQ(seen, (Numbers{6, 7, 8, 9}));
  seen.clear();
  numbers(10).skip(6).filter([&](const Batch& one) { return look(one).ids.defined(); });
  EXPECT_EQ(seen, (Numbers{6, 7, 8, 9}));
}

TEST(Ids, OfGroupsAreThoseOfTheirFirstSamples) {
  const auto ids = [](const Dataset& data) { return numbers_of(data.read_all().ids); };
  EXPECT_EQ(ids(numbers(12).batch(4)), (Numbers{0, 4, 8}));
  EXPECT_EQ(ids(numbers(12).shard(2, 1).batch(3)), (Numbers{1, 7}));
  EXPECT_EQ(ids(numbers(12).skip(2).padded_batch(5)), (Numbers{2, 7}));
}

TEST(Ids, OfSamplesThatAreAddedAreTheirOwn) {
  const auto ids = [](const Dataset& data) { return numbers_of(data.read_all().ids); };
  EXPECT_EQ(ids(numbers(2).concatenate(numbers(3))), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(ids(numbers(4).shard(2, 0).concatenate(numbers(4).shard(2, 1))), (Numbers{0, 2, 5, 7}));
  EXPECT_EQ(ids(numbers(3).repeat(2)), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ids(numbers(4).skip(2).repeat(2)), (Numbers{2, 3, 6, 7}));
  const Numbers all = ids(numbers(4).shuffle(1).repeat(3).concatenate(numbers(4).shuffle(2)));
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 16u);
}

TEST(Ids, AreThoseOfAStreamOfTheSameData) {
  const auto by_stream = [](const Stream& stream) {
    Numbers ids;
    for (const Batch& one : stream.read_all()) ids.push_back(one.ids.item<int64_t>());
    return ids;
  };
  const Dataset all = numbers(12);
  const Stream stream = data::from_dataset(all);
  EXPECT_EQ(numbers_of(all.shard(3, 1).read_all().ids), by_stream(stream.shard(3, 1)));
  EXPECT_EQ(numbers_of(all.take(5).skip(2).read_all().ids), by_stream(stream.take(5).skip(2)));
  EXPECT_EQ(by_stream(data::from_dataset(all.shard(3, 1))), by_stream(stream.shard(3, 1)));
}

TEST(Ids, OfTwoShardsGiveThemDifferentRandomNumbers) {
  const auto noise = [](const Dataset& data) {
    const auto draw = [](Batch one, const at::Generator& generator) {
      one.input = torch::rand({1, 1}, generator);
      return one;
    };
    return data.map(draw).read_all().input;
  };
  const Dataset all = numbers(12);
  const auto differ = [&](const Dataset& a, const Dataset& b) {
    EXPECT_FALSE(noise(a).eq(noise(b)).any().item<bool>()) << a.source()->describe();
  };
  differ(all.shard(2, 0), all.shard(2, 1));
  differ(all.take(6), all.skip(6));
  differ(all.shard(2, 0).batch(2), all.shard(2, 1).batch(2));
  differ(all.take(6).repeat(2).take(6), all.take(6).repeat(2).skip(6));
  // A sample has the same noise wherever it stands.
  EXPECT_TRUE(torch::equal(noise(all).narrow(0, 6, 6), noise(all.skip(6))));
  const Dataset shuffled = all.shuffle(3);
  EXPECT_TRUE(torch::equal(noise(all).index_select(0, shuffled.read_all().target), noise(shuffled)));
}

TEST(Ids, OfDealtSamplesAreThoseOfTheWholeData) {
  for (const OnError on_error : {OnError::kThrow, OnError::kSkip}) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const auto data = strategy.distribute(numbers(20).shuffle(5).shard(2, 1).take(7),
                                          {.global_batch = 4, .shuffle = true, .on_error = on_error});
    int64_t samples = 0;
    for (const int64_t epoch : {0, 1}) {
      for (const auto& batch : data.epoch(epoch)) {
        for (const Batch& part : batch) {
          EXPECT_EQ(numbers_of(part.ids), numbers_of(part.target));
          samples += part.size();
        }
      }
    }
    EXPECT_EQ(samples, 14);
  }
}

TEST(Ids, DecideNothingInACursorOfAnEarlierVersion) {
  // As it was written when ids behind stages were places, at the second batch of an epoch.
  const std::string before =
      R"({"epoch":1,"position":4,"size":10,"seed":3,"shuffle":true,"digest":4439921116271110133})";
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 3});
  const auto make = [&] {
    return strategy.distribute(numbers(20).shuffle(5).shard(2, 1), {.global_batch = 4, .shuffle = true});
  };
  const auto rest = make();
  rest.seek(data::cursor_from_json(before));
  const auto whole = testing::steps_of(make(), 1);
  EXPECT_EQ(testing::steps_of(rest, 1), (testing::Steps{whole.begin() + 1, whole.end()}));
}

}  // namespace
}  // namespace lockstep
