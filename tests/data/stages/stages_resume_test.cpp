// Data sets with every stage: a run that continues at any step is the run that was not stopped.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

/// Pipelines with every stage.
const std::map<std::string, Dataset>& pipelines() {
  static const auto* const all = [] {
    const auto noise = [](Batch sample, const at::Generator& random) {
      sample.input = sample.input + torch::rand(sample.input.sizes(), random) + torch::rand({1});
      return sample;
    };
    const auto ragged = [](Batch sample) {
      sample.input = torch::ones({1, sample.target.item<int64_t>() % 3 + 1});
      return sample;
    };
    const auto odd = [](const Batch& b) { return b.target.item<int64_t>() % 2 == 1; };
    const auto doubled = [](Batch rows) {
      rows.input = rows.input * 2;
      return rows;
    };
    const Dataset numbers = data::from_tensors(torch::arange(40, torch::kFloat).view({20, 2}), torch::arange(20));
    return new std::map<std::string, Dataset>{
        {"tensors", numbers},
        {"map", numbers.map(noise)},
        {"threads", numbers.map(noise, {.threads = 3})},
        {"map_rows", numbers.map_rows(doubled)},
        {"filter", numbers.filter(odd)},
        {"shuffle", numbers.shuffle(2)},
        {"batch", numbers.batch(2)},
        {"padded_batch", numbers.map(ragged).padded_batch(3, {.length = 4}, true)},
        {"shard", numbers.shard(3, 1)},
        {"take", numbers.take(9)},
        {"skip", numbers.skip(7)},
        {"slice", data::slice(numbers, 4, 13)},
        {"repeat", numbers.take(5).shuffle(3).map(noise).repeat(3)},
        {"zip", numbers.shuffle(1).zip(numbers.map(noise), "noise")},
        {"concatenate", numbers.take(3).map(noise).concatenate(numbers.shuffle(4))},
        {"cache", numbers.map(noise).cache()},
        {"prefetch", numbers.map(noise).prefetch(2)},
        {"all", numbers.filter(odd).cache().map(noise, {.threads = 2}).shuffle(5).repeat(2).skip(2).batch(2)}};
  }();
  return *all;
}

/// The tensors of each step from the present place to the end of epoch 1, of all replicas, and the place behind it.
struct Rest {
  std::vector<std::map<std::string, at::Tensor>> steps;
  std::vector<data::Cursor> behind;
};

Rest rest_of(const DistributedDataset& data) {
  Rest rest;
  for (const int64_t epoch : {0, 1}) {
    for (const auto& batch : data.epoch(epoch)) {
      std::map<std::string, std::vector<at::Tensor>> parts;
      for (const Batch& part : batch) {
        if (part.size() == 0) continue;
        parts["input"].push_back(part.input);
        parts["target"].push_back(part.target);
        parts["ids"].push_back(part.ids);
        for (const auto& [name, tensor] : part.more) parts[name].push_back(tensor);
      }
      auto& step = rest.steps.emplace_back();
      for (const auto& [name, tensors] : parts) step[name] = at::cat(tensors);
      rest.behind.push_back(data.cursor());
    }
  }
  return rest;
}

class Resumed : public ::testing::TestWithParam<std::string> {};

TEST_P(Resumed, AtAnyStepIsTheRunThatWasNotStopped) {
  const Dataset& data = pipelines().at(GetParam());
  for (const bool shuffle : {false, true}) {
    const DistributeOptions options{.global_batch = 3, .shuffle = shuffle, .seed = 7};
    MirroredStrategy two({.devices = testing::lanes(1), .replicas = 2});
    const Rest whole = rest_of(two.distribute(data, options));
    ASSERT_GT(whole.steps.size(), 3u);
    DistributeOptions ahead = options;
    ahead.prefetch = 2;
    MirroredStrategy three({.devices = testing::lanes(1), .replicas = 3});
    const DistributedDataset again = three.distribute(data, ahead);
    for (std::size_t stop = 0; stop < whole.steps.size(); ++stop) {
      again.seek(whole.behind[stop]);
      const Rest rest = rest_of(again);
      ASSERT_EQ(rest.steps.size(), whole.steps.size() - stop - 1);
      for (std::size_t i = 0; i < rest.steps.size(); ++i) {
        const auto& expected = whole.steps[stop + 1 + i];
        ASSERT_EQ(rest.steps[i].size(), expected.size());
        for (const auto& [name, tensor] : expected) {
          EXPECT_TRUE(torch::equal(rest.steps[i].at(name), tensor))
              << name << " of step " << stop + 1 + i << " after a stop behind step " << stop;
        }
        EXPECT_EQ(rest.behind[i], whole.behind[stop + 1 + i]);
      }
    }
  }
}

std::vector<std::string> names_of_pipelines() {
  std::vector<std::string> names;
  for (const auto& [name, data] : pipelines()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(OfEachStage, Resumed, ::testing::ValuesIn(names_of_pipelines()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace lockstep
