// Samples that are not alike: joined by a function of the program, for each replica by itself.
#include "lockstep/data/deal/collate.h"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;
using Example = torch::data::Example<>;
using Numbers = std::vector<int64_t>;

/// Sample i has 1 + i % 4 words, all i, and the target i.
struct Words : torch::data::Dataset<Words> {
  explicit Words(int64_t size) : count(size) {}
  Example get(std::size_t i) override {
    const auto id = static_cast<int64_t>(i);
    return {torch::full({1 + id % 4}, id, torch::kFloat), torch::full({}, id, torch::kFloat)};
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(count); }
  int64_t count;
};

/// Fills words up with -1, and keeps the lengths.
Batch padded(const std::vector<Tensor>& words, const std::vector<Tensor>& targets) {
  Numbers lengths;
  for (const Tensor& one : words) lengths.push_back(one.size(0));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  Batch batch{.input = torch::full({static_cast<int64_t>(words.size()), longest}, -1.0),
              .target = torch::stack(targets)};
  for (std::size_t i = 0; i < words.size(); ++i) {
    batch.input[static_cast<int64_t>(i)].narrow(0, 0, lengths[i]).copy_(words[i]);
  }
  batch.more["lengths"] = torch::tensor(lengths);
  return batch;
}

Batch join_rows(const std::vector<Batch>& samples) {
  std::vector<Tensor> words, targets;
  for (const Batch& one : samples) {
    EXPECT_EQ(one.size(), 1);
    words.push_back(one.input[0]);
    targets.push_back(one.target[0]);
  }
  return padded(words, targets);
}

Batch join_examples(const std::vector<Example>& samples) {
  std::vector<Tensor> words, targets;
  for (const Example& one : samples) words.push_back(one.data), targets.push_back(one.target);
  return padded(words, targets);
}

Numbers numbers_of(const Tensor& tensor) {
  const Tensor flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

class CollateOn : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  /// Looks at an epoch of 10 samples by 4: parts, ids, sizes.
  void expect_dealt(const DistributedDataset& dealt) {
    std::multiset<int64_t> seen;
    Numbers sizes;
    for (const auto& step : dealt.epoch(0)) {
      sizes.push_back(step[0].global_size);
      int64_t samples = 0;
      for (const Batch& part : step) {
        samples += part.samples();
        EXPECT_EQ(part.global_size, step[0].global_size);
        const Numbers ids = numbers_of(part.ids);
        seen.insert(ids.begin(), ids.end());
        ASSERT_EQ(part.input.size(0), part.size());
        ASSERT_EQ(part.more.at("lengths").size(0), part.size());
        int64_t longest = 0;
        for (int64_t i = 0; i < part.size(); ++i) {
          const int64_t number = ids[static_cast<std::size_t>(i)] % 10;  // behind concatenate() ids are beyond 10
          const int64_t length = 1 + number % 4;
          longest = std::max(longest, length);
          EXPECT_EQ(part.more.at("lengths")[i].item<int64_t>(), length);
          EXPECT_EQ(part.input[i][0].item<int64_t>(), number);
        }
        if (part.size() > 0) {
          EXPECT_EQ(part.input.size(1), longest) << "each part by itself";
        }
      }
      EXPECT_EQ(samples, step[0].global_size);
    }
    EXPECT_EQ(sizes, (Numbers{4, 4, 2}));
    EXPECT_EQ(seen.size(), 10u);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 10u) << "each sample once";
  }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first, .seed = 3}};
};

TEST_P(CollateOn, EachPartIsMadeOfItsSamples) {
  const Dataset words = data::from_torch(Words(10));
  expect_dealt(strategy_.distribute(words, {.global_batch = 4, .collate = join_rows}));
  expect_dealt(strategy_.distribute(words, {.global_batch = 4, .shuffle = true, .collate = join_examples}));
  expect_dealt(strategy_.distribute(
      words, {.global_batch = 4, .shuffle = true, .prefetch = 3, .threads = 2, .collate = &join_examples}));
  expect_dealt(strategy_.distribute(words.cache(), {.global_batch = 4, .shuffle = true, .collate = join_rows}));
  const Dataset more = data::from_torch(Words(14)).filter([](const Batch& one) { return one.target.item<int>() < 10; });
  expect_dealt(strategy_.distribute(more, {.global_batch = 4, .collate = join_rows}));
  expect_dealt(
      strategy_.distribute(words.take(5).concatenate(words.skip(5)), {.global_batch = 4, .collate = join_rows}));
  expect_dealt(
      strategy_.distribute(data::from_dataset(words), {.global_batch = 4, .prefetch = 2, .collate = join_rows}));
}

TEST_P(CollateOn, WeightsAreThoseOfSamplesHoweverLongTheyAre) {
  const auto dealt = strategy_.distribute(data::from_torch(Words(5)), {.global_batch = 5, .collate = join_examples});
  for (const auto& step : dealt.epoch(0)) {
    const auto losses = strategy_.run(step, [](ReplicaContext& ctx, const Batch& part) {
      EXPECT_EQ(ctx.global_batch_size(), 5);
      return ctx.scale_loss(part.target.mean());
    });
    EXPECT_NEAR(strategy_.reduce(Reduction::kSum, losses).item<double>(), 2, 1e-6) << "the mean of 0 to 4";
  }
}

struct Label {
  std::string text;
  int64_t number;
};
/// No tensor at all in its target.
struct Labelled : torch::data::Dataset<Labelled, torch::data::Example<Tensor, Label>> {
  torch::data::Example<Tensor, Label> get(std::size_t i) override {
    return {torch::full({2}, static_cast<int64_t>(i)), Label{std::to_string(i), static_cast<int64_t>(i)}};
  }
  torch::optional<std::size_t> size() const override { return 6; }
};
/// A struct that is no Example.
struct Edge {
  std::unique_ptr<int64_t> from;
  int64_t to = 0;
};
struct Edges : torch::data::Dataset<Edges, Edge> {
  Edge get(std::size_t i) override {
    const auto id = static_cast<int64_t>(i);
    return {std::make_unique<int64_t>(id), id + 1};
  }
  torch::optional<std::size_t> size() const override { return 6; }
};

TEST_P(CollateOn, StructsOfTheProgramAreJoinedByIt) {
  const auto label = [](const std::vector<torch::data::Example<Tensor, Label>>& samples) {
    Batch batch;
    std::vector<Tensor> inputs;
    Numbers numbers;
    for (const auto& one : samples) {
      inputs.push_back(one.data);
      numbers.push_back(std::stoll(one.target.text) + one.target.number);
    }
    batch.input = torch::stack(inputs);
    batch.target = torch::tensor(numbers);
    return batch;
  };
  const auto edges = [](std::vector<Edge> samples) {
    Numbers flat;
    for (Edge& one : samples) flat.insert(flat.end(), {*one.from, one.to});
    return Batch{.input = torch::tensor(flat).view({2, -1})};  // as it likes: no row for each sample
  };
  const auto of_span = [&](std::span<const torch::data::Example<Tensor, Label>> samples) {
    return label({samples.begin(), samples.end()});
  };
  const Dataset labelled = data::from_torch(std::make_shared<Labelled>());
  for (const Dataset& set :
       {labelled, labelled.shuffle(3), labelled.take(3).concatenate(labelled.skip(3)), labelled.take(2).repeat(3)}) {
    for (const auto& step : strategy_.distribute(set, {.global_batch = 4, .prefetch = 2, .collate = label}).epoch(0)) {
      for (const Batch& part : step) {
        EXPECT_EQ(part.target.size(0), part.size());
        if (part.size() > 0) {
          EXPECT_TRUE(torch::equal(part.input.select(1, 0) * 2, part.target));
        }
      }
    }
  }
  EXPECT_EQ((*strategy_.distribute(labelled, {.global_batch = 6, .collate = of_span}).epoch(0).begin())[0].global_size,
            6);
  int64_t all = 0;
  for (const auto& step :
       strategy_.distribute(data::from_torch(Edges()), {.global_batch = 4, .collate = edges}).epoch(0)) {
    for (const Batch& part : step) {
      all += part.size();
      EXPECT_EQ(part.input.numel(), 2 * part.size());
    }
  }
  EXPECT_EQ(all, 6);
  expect_error<UsageError>([&] { strategy_.distribute(labelled, {.global_batch = 4}); }, "LS-COLLATE",
                           {"Label", ".collate"});
  expect_error<UsageError>([&] { strategy_.distribute(labelled, {.global_batch = 4, .collate = join_rows}); },
                           "LS-COLLATE", {"Label"});
  expect_error<UsageError>(
      [&] { strategy_.distribute(data::from_torch(Words(4)), {.global_batch = 4, .collate = edges}); }, "LS-COLLATE",
      {"Edge"});
  expect_error<UsageError>(
      [&] { strategy_.distribute(data::from_dataset(labelled), {.global_batch = 4, .collate = label}); }, "LS-COLLATE",
      {"a stream"});
  expect_error<UsageError>(
      [&] { strategy_.distribute(labelled, {.global_batch = 4, .sharding = Sharding::kOff, .collate = label}); },
      "LS-COLLATE", {"kOff", "Label"});
}

TEST(Collate, IsNamedWhereSamplesHaveDifferentLengths) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const auto dealt = strategy.distribute(data::from_torch(Words(10)), {.global_batch = 4});
  expect_error<DataError>([&] { dealt.epoch(0).begin(); }, "LS-SAMPLE-SHAPE",
                          {"Float [1]", "Float [2]", "sample 1", "padded_batch", "DistributeOptions::collate"});
}

TEST_P(CollateOn, WhatItCannotMakeIsNamedWithTheSamples) {
  const Dataset words = data::from_torch(Words(8));
  const auto first = [&](Collate collate, OnError on_error = OnError::kThrow) {
    *strategy_.distribute(words, {.global_batch = 8, .on_error = on_error, .collate = std::move(collate)})
         .epoch(0)
         .begin();
  };
  const auto throws = [](const std::vector<Batch>&) -> Batch { throw std::runtime_error("no glue"); };
  const std::string first_part = replicas() == 1 ? "8 samples (0, 1, 2, 3, 4, 5, 6, 7)" : "replica 0";
  expect_error<DataError>([&] { first(throws); }, "LS-COLLATE", {"no glue", first_part, "a torch::data data set"});
  expect_error<DataError>([&] { first(throws, OnError::kSkip); }, "LS-COLLATE", {"no glue"});
  expect_error<DataError>([&] { first([](const std::vector<Batch>&) { return Batch(); }); }, "LS-COLLATE", {"input"});
  expect_error<DataError>(
      [&] {
        first([](const std::vector<Batch>& samples) {
          Batch batch = join_rows(samples);
          batch.ids = torch::full({batch.input.size(0)}, 7, torch::kLong);
          return batch;
        });
      },
      "LS-COLLATE", {"ids"});
  expect_error<UsageError>(
      [&] { strategy_.distribute(words, {.global_batch = 4, .remainder = Remainder::kPad, .collate = join_rows}); },
      "LS-COLLATE", {"kPad"});
}

TEST_P(CollateOn, AnOrderOfItsOwnIsKeptInTheIds) {
  const auto longest_first = [](std::vector<Batch> samples) {
    std::stable_sort(samples.begin(), samples.end(),
                     [](const Batch& a, const Batch& b) { return a.input.size(1) > b.input.size(1); });
    Batch batch = join_rows(samples);
    std::vector<Tensor> ids;
    for (const Batch& one : samples) ids.push_back(one.ids);
    batch.ids = torch::cat(ids);
    return batch;
  };
  const auto dealt = strategy_.distribute(data::from_torch(Words(8)), {.global_batch = 8, .collate = longest_first});
  for (const auto& step : dealt.epoch(0)) {
    for (const Batch& part : step) {
      if (part.size() > 0) {
        EXPECT_TRUE(torch::equal(part.ids.to(torch::kFloat), part.target));
      }
    }
  }
}

TEST_P(CollateOn, SamplesThatCannotBeReadAreLeftOutOfIt) {
  const Dataset some = data::from_torch(Words(10)).map([](Batch sample) {
    if (sample.target.item<int64_t>() % 3 == 1) throw std::runtime_error("damaged");
    return sample;
  });
  const auto dealt = strategy_.distribute(some, {.global_batch = 5, .on_error = OnError::kSkip, .collate = join_rows});
  std::set<int64_t> seen;
  int64_t sizes = 0;
  for (const auto& step : dealt.epoch(0)) {
    sizes += step[0].global_size;
    for (const Batch& part : step) {
      const Numbers ids = numbers_of(part.ids);
      seen.insert(ids.begin(), ids.end());
    }
  }
  EXPECT_EQ(seen, (std::set<int64_t>{0, 2, 3, 5, 6, 8, 9}));
  EXPECT_EQ(sizes, 7);
  EXPECT_EQ(dealt.skipped(), 3);
}

TEST(Collate, IsCalledByTheThreadsThatReadAhead) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  std::atomic<bool> elsewhere = false;
  const auto dealt = strategy.distribute(
      data::from_torch(Words(40)),
      {.global_batch = 4, .prefetch = 2, .collate = [&, here = std::this_thread::get_id()](std::vector<Batch> samples) {
         if (std::this_thread::get_id() != here) elsewhere = true;
         return join_rows(samples);
       }});
  for (const auto& step : dealt.epoch(0)) EXPECT_EQ(step[0].size(), 4);
  EXPECT_TRUE(elsewhere);
}

TEST(Collate, DrawsByTheSamplesAndNotByTheThread) {
  const auto noise_of = [](int64_t prefetch, int64_t threads, uint64_t seed) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = seed});
    const auto noise = [](const std::vector<Batch>& samples) {
      Batch batch = join_rows(samples);
      batch.more["noise"] = torch::rand({batch.input.size(0)});
      return batch;
    };
    std::vector<Tensor> all;
    const auto dealt = strategy.distribute(
        data::from_torch(Words(12)), {.global_batch = 4, .prefetch = prefetch, .threads = threads, .collate = noise});
    for (const int64_t epoch : {0, 1}) {
      for (const auto& step : dealt.epoch(epoch)) {
        for (const Batch& part : step) all.push_back(part.more.at("noise"));
      }
    }
    return torch::cat(all);
  };
  torch::manual_seed(1);
  const Tensor noise = noise_of(0, 1, 3);
  torch::manual_seed(2);
  EXPECT_TRUE(torch::equal(noise, noise_of(3, 3, 3)));
  EXPECT_FALSE(torch::equal(noise, noise_of(0, 1, 4)));
  EXPECT_FALSE(torch::equal(noise.narrow(0, 0, 12), noise.narrow(0, 12, 12))) << "another epoch, other numbers";
  EXPECT_EQ(std::get<0>(at::_unique(noise)).numel(), 24) << "each part draws its own";
}

TEST(Collate, MayChangeItsSamplesInPlace) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto doubled = [](std::vector<Batch> samples) {
    std::vector<Tensor> inputs;
    for (Batch& one : samples) inputs.push_back(one.input.mul_(2));
    return Batch{.input = inputs.size() == 1 ? inputs.front() : torch::cat(inputs)};
  };
  const Tensor numbers = torch::arange(1, 7, torch::kFloat).view({6, 1});
  const Dataset kept = data::from_tensors(numbers, torch::zeros({6})).cache();
  const Stream rows = data::from_dataset(data::from_tensors(numbers, torch::zeros({6}))).batch(3).cache();
  for (const auto& dealt : {strategy.distribute(kept, {.global_batch = 4, .collate = doubled}),
                            strategy.distribute(rows, {.global_batch = 4, .collate = doubled})}) {
    for (const int64_t epoch : {0, 1, 2}) {
      std::vector<Tensor> all;
      for (const auto& step : dealt.epoch(epoch)) {
        for (const Batch& part : step) all.push_back(part.input);
      }
      EXPECT_TRUE(torch::equal(torch::cat(all), numbers * 2)) << "epoch " << epoch;
    }
  }
  EXPECT_EQ(numbers.sum().item<float>(), 21);
}

TEST(Collate, GivesTensorsWithoutGradient) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const Tensor table = torch::ones({10}, torch::requires_grad());
  const auto look_up = [&](const std::vector<Batch>& samples) {
    return Batch{.input = table.narrow(0, 0, static_cast<int64_t>(samples.size())) * 2, .target = table};
  };
  for (const int64_t prefetch : {0, 1}) {
    const auto dealt =
        strategy.distribute(data::from_torch(Words(4)), {.global_batch = 4, .prefetch = prefetch, .collate = look_up});
    EXPECT_FALSE((*dealt.epoch(0).begin())[0].input.requires_grad());
    EXPECT_FALSE((*dealt.epoch(0).begin())[0].target.requires_grad());
  }
}

TEST(Collate, ThatIsAnEmptyFunctionIsNone) {
  EXPECT_FALSE(Collate());
  EXPECT_FALSE(Collate(std::function<Batch(std::vector<Batch>)>()));
  EXPECT_TRUE(Collate(std::function<Batch(const std::vector<Batch>&)>(join_rows)));
  EXPECT_TRUE(Collate(&join_examples));
  EXPECT_FALSE(Collate(&join_examples).takes_batches());
}

TEST(Collate, OfAGenericFunctionJoinsBatches) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto dealt = strategy.distribute(
      data::from_torch(Words(4)), {.global_batch = 4, .collate = [](const auto& all) { return join_rows(all); }});
  EXPECT_EQ((*dealt.epoch(0).begin())[1].size(), 2);
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndLanes, CollateOn,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 2}, std::pair{6, 2}),
                         [](const auto& each) {
                           return std::to_string(each.param.first) + "On" + std::to_string(each.param.second);
                         });

}  // namespace
}  // namespace lockstep
