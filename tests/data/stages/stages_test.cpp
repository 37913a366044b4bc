// The stages of data sets.
#include "lockstep/data/stages/stage.h"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "tests/data/tens.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::inputs_of;
using testing::Numbers;
using testing::tens;

TEST(Stages, ChooseSamples) {
  const Dataset ten = tens(10);
  EXPECT_EQ(inputs_of(ten.take(3)), (Numbers{0, 1, 2}));
  EXPECT_EQ(inputs_of(ten.take(30)).size(), 10u);
  EXPECT_EQ(inputs_of(ten.skip(8)), (Numbers{8, 9}));
  EXPECT_EQ(ten.skip(30).size(), 0);
  EXPECT_EQ(inputs_of(ten.shard(3, 1)), (Numbers{1, 4, 7}));
  EXPECT_EQ(inputs_of(ten.shard(3, 0)), (Numbers{0, 3, 6, 9}));
  EXPECT_EQ(ten.take(1).shard(3, 2).size(), 0);
  EXPECT_EQ(inputs_of(ten.filter([](const Batch& b) { return b.target.item<int64_t>() % 30 == 0; })),
            (Numbers{0, 3, 6, 9}));
  EXPECT_EQ(inputs_of(ten.skip(2).shard(2, 1).take(2)), (Numbers{3, 5}));
}

TEST(Filter, IsRefusedBehindWhatChangesByEpoch) {
  const auto even = [](const Batch& b) { return b.input.item<int64_t>() % 2 == 0; };
  const auto same = [](Batch b) { return b; };
  const auto drawn = [](Batch b, const at::Generator&) { return b; };
  const Dataset ten = tens(10);
  const Dataset shuffled = ten.shuffle(3);
  for (const Dataset& changing :
       {shuffled, shuffled.take(5), shuffled.repeat(2), shuffled.map(same), ten.map(drawn), ten.map(drawn).map(same),
        ten.concatenate(shuffled), ten.zip(shuffled), shuffled.prefetch(1)})
    expect_error<UsageError>([&] { changing.filter(even); }, "LS-OPTION", {"filter", "cache()"});
  for (const Dataset& fixed : {ten, ten.map(same), ten.map(same).take(10), ten.repeat(1), shuffled.cache()})
    EXPECT_EQ(fixed.filter(even).size(), 5);
  EXPECT_EQ(ten.repeat(2).map(same).filter(even).size(), 10);
  const Dataset chosen = ten.filter(even).shuffle(3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Numbers sorted = inputs_of(chosen.at_epoch(0, epoch));
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (Numbers{0, 2, 4, 6, 8}));
  }
}

TEST(Stages, JoinDataSets) {
  const Dataset both = tens(3).concatenate(tens(2));
  EXPECT_EQ(inputs_of(both), (Numbers{0, 1, 2, 0, 1}));
  EXPECT_TRUE(torch::equal(both.read(Numbers{4, 0, 3}).target, torch::tensor({10, 0, 0})));
  EXPECT_EQ(inputs_of(tens(2).repeat(3)), (Numbers{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(tens(2).repeat(0).size(), 0);
  const Dataset zipped = tens(4).zip(tens(9).skip(5), "other");
  EXPECT_EQ(zipped.size(), 4);
  const Batch some = zipped.read(Numbers{1, 2});
  EXPECT_TRUE(torch::equal(some.more.at("other/input"), torch::tensor({{6.0f}, {7.0f}})));
  EXPECT_TRUE(torch::equal(some.more.at("other/target"), torch::tensor({60, 70})));
}

/// The sizes of all tensors of no samples.
std::vector<Numbers> sizes_of_none(const Dataset& dataset) {
  const Batch none = dataset.read(Numbers{});
  std::vector<Numbers> sizes{none.input.sizes().vec(), none.target.sizes().vec()};
  for (const auto& [name, tensor] : none.more) sizes.push_back(tensor.sizes().vec());
  return sizes;
}

TEST(Batching, ReadForNoSamplesHasTheShapeOfAGroup) {
  using Sizes = std::vector<Numbers>;
  const Dataset ten = tens(10);
  const auto doubled = [](Batch b) { return Batch{.input = torch::cat({b.input, b.input}, -1), .target = b.target}; };
  EXPECT_EQ(sizes_of_none(ten.batch(4)), (Sizes{{0, 4, 1}, {0, 4}}));
  EXPECT_EQ(sizes_of_none(ten.batch(4).batch(2)), (Sizes{{0, 2, 4, 1}, {0, 2, 4}}));
  EXPECT_EQ(sizes_of_none(ten.batch(40)), (Sizes{{0, 10, 1}, {0, 10}})) << "the one group that there is";
  EXPECT_EQ(sizes_of_none(ten.take(0).batch(4)), (Sizes{{0, 4, 1}, {0, 4}}));
  EXPECT_EQ(sizes_of_none(ten.padded_batch(4, {.length = 7})), (Sizes{{0, 4, 7}, {0, 4}}));
  EXPECT_EQ(sizes_of_none(ten.batch(4).map_rows(doubled)), (Sizes{{0, 4, 2}, {0, 4}}));
  EXPECT_EQ(sizes_of_none(ten.batch(5).zip(ten.batch(2), "two")), (Sizes{{0, 5, 1}, {0, 5}, {0, 2, 1}, {0, 2}}));
  EXPECT_EQ(sizes_of_none(ten.map(doubled).batch(4).repeat(2).shuffle(1).take(3)), (Sizes{{0, 4, 2}, {0, 4}}));
  const Dataset mapped = ten.batch(4).map(doubled);
  EXPECT_EQ(mapped.read(Numbers{2}).input.sizes(), (Numbers{1, 2, 2})) << "the last group, read before the others";
  EXPECT_EQ(sizes_of_none(mapped), (Sizes{{0, 4, 2}, {0, 4}}));
}

TEST(Stages, GroupSamples) {
  const Dataset groups = tens(10).batch(4);
  EXPECT_EQ(groups.size(), 3);
  EXPECT_EQ(tens(10).batch(4, true).size(), 2);
  EXPECT_TRUE(torch::equal(groups.read(Numbers{1, 0}).target, torch::tensor({{40, 50, 60, 70}, {0, 10, 20, 30}})));
  EXPECT_EQ(groups.read(Numbers{2}).input.sizes(), (Numbers{1, 2, 1}));
  expect_error<DataError>([&] { groups.read(Numbers{0, 2}); }, "LS-SAMPLE-SHAPE", {"[1, 4, 1]", "[1, 2, 1]"});
}

TEST(Stages, PadSamplesOfDifferentLengths) {
  const Dataset ragged = tens(4).map([](Batch sample) {
    const int64_t length = sample.ids.item<int64_t>() + 1;
    sample.input = torch::full({1, length}, length);
    return sample;
  });
  expect_error<DataError>([&] { ragged.read(Numbers{0, 1}); }, "LS-SAMPLE-SHAPE", {"[1, 1]", "[1, 2]"});
  const Dataset padded = ragged.padded_batch(2, {.value = -1});
  EXPECT_TRUE(torch::equal(padded.read(Numbers{0}).input, torch::tensor({{{1, -1}, {2, 2}}})));
  EXPECT_EQ(padded.read(Numbers{1}).input.sizes(), (Numbers{1, 2, 4}));
  EXPECT_EQ(ragged.padded_batch(2, {.length = 5}).read_all().input.sizes(), (Numbers{2, 2, 5}));
  expect_error<DataError>([&] { ragged.padded_batch(4, {.length = 3}).read_all(); }, "LS-SAMPLE-SHAPE", {"length 4"});
}

TEST(Stages, ShuffleIsAnotherPermutationInEachEpoch) {
  const Dataset shuffled = tens(50).shuffle(7);
  const Numbers first = inputs_of(shuffled.at_epoch(0, 0));
  EXPECT_EQ(inputs_of(shuffled), first) << "read directly it is epoch 0";
  EXPECT_NE(inputs_of(shuffled.at_epoch(0, 1)), first);
  EXPECT_NE(inputs_of(tens(50).shuffle(8)), first);
  Numbers sorted = inputs_of(shuffled.at_epoch(0, 5));
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, inputs_of(tens(50)));
  const Numbers twice = inputs_of(shuffled.repeat(2).at_epoch(0, 3));
  EXPECT_EQ(Numbers(twice.begin(), twice.begin() + 50), inputs_of(shuffled.at_epoch(0, 6)));
  EXPECT_EQ(Numbers(twice.begin() + 50, twice.end()), inputs_of(shuffled.at_epoch(0, 7)));
}

TEST(Map, DrawsTheSameWhateverThreadAndNeighboursReadASample) {
  const auto noisy = [](int64_t threads) {
    return tens(64).map(
        [](Batch sample, const at::Generator& random) {
          sample.input = sample.input + torch::rand({1, 3}, random) + torch::rand({1, 3});
          return sample;
        },
        {.threads = threads});
  };
  const torch::Tensor whole = noisy(1).read_all().input;
  EXPECT_TRUE(torch::equal(noisy(4).read_all().input, whole));
  EXPECT_TRUE(torch::equal(noisy(4).read(Numbers{9}).input, whole.narrow(0, 9, 1)));
  EXPECT_TRUE(torch::equal(noisy(1).at_epoch(3, 2).read_all().input, noisy(3).at_epoch(3, 2).read_all().input));
  EXPECT_FALSE(torch::equal(noisy(1).at_epoch(3, 2).read_all().input, noisy(1).at_epoch(3, 1).read_all().input));
  EXPECT_FALSE(torch::equal(noisy(1).at_epoch(3, 2).read_all().input, noisy(1).at_epoch(4, 2).read_all().input));
  const torch::Tensor draws = whole - torch::arange(64).view({64, 1});
  EXPECT_GT(draws.std().item<double>(), 0.2);
  EXPECT_FALSE(torch::equal(draws[0], draws[1]));
}

TEST(Map, StagesOfOnePipelineDrawDifferentNumbers) {
  const auto draw = [](Batch sample) {
    sample.more["draw" + std::to_string(sample.more.size())] = torch::rand({1, 4});
    return sample;
  };
  const Batch both = tens(3).map(draw).map(draw).at_epoch(0, 1).read_all();
  EXPECT_FALSE(torch::equal(both.more.at("draw0"), both.more.at("draw1")));
}

TEST(Map, LeavesTheGlobalGeneratorAlone) {
  torch::manual_seed(5);
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  tens(8)
      .map([](Batch sample) {
        sample.input = torch::rand({1, 2});
        return sample;
      })
      .read_all();
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Map, NamesTheSampleOnWhichItsFunctionFailed) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (const int64_t threads : {1, 3}) {
    const Dataset broken = tens(30).map(
        [](Batch sample) {
          if (sample.ids.item<int64_t>() >= 17) throw Mine("no such colour");
          return sample;
        },
        {.threads = threads, .name = "recolour"});
    EXPECT_EQ(broken.take(17).read_all().size(), 17);
    const DataError error = testing::error_from<DataError>([&] { broken.read_all(); });
    EXPECT_EQ(error.code(), "LS-MAP");
    EXPECT_TRUE(testing::has_value(error.what(), "sample 17")) << error.what();
    EXPECT_TRUE(testing::has_value(error.what(), "recolour")) << error.what();
    EXPECT_THROW(
        {
          try {
            broken.read(Numbers{17});
          } catch (const DataError& caught) {
            std::rethrow_if_nested(caught);
          }
        },
        Mine);
  }
  const Dataset wrong = tens(3).map([](Batch sample) {
    sample.input = torch::zeros({2, 1});
    return sample;
  });
  expect_error<DataError>([&] { wrong.read_all(); }, "LS-MAP", {"sample 0", "[2, 1]"});
}

TEST(Map, KnowsTheShapeOfNoSamples) {
  const Dataset wide = tens(3).map([](Batch sample) {
    sample.input = torch::zeros({1, 5}, torch::kDouble);
    return sample;
  });
  const Batch none = wide.read(Numbers{});
  EXPECT_EQ(none.input.sizes(), (Numbers{0, 5}));
  EXPECT_EQ(none.input.scalar_type(), torch::kDouble);
}

TEST(Map, PutsSamplesOfAnyKindTogether) {
  const auto check = [](const std::function<at::Tensor(const at::Tensor&)>& make) {
    for (const int64_t threads : {1, 3}) {
      const Batch all = tens(40)
                            .map(
                                [&](Batch sample) {
                                  sample.input = make(sample.input);
                                  sample.more["again"] = make(sample.target.to(torch::kFloat).view({1, 1}));
                                  return sample;
                                },
                                {.threads = threads})
                            .read_all();
      const at::Tensor expected = torch::arange(40).to(torch::kFloat).view({40, 1});
      EXPECT_TRUE(torch::equal(all.input, make(expected)));
      EXPECT_TRUE(torch::equal(all.more.at("again"), make(expected * 10)));
      EXPECT_FALSE(all.input.requires_grad());
    }
  };
  check([](const at::Tensor& x) { return x + 1; });
  check([](const at::Tensor& x) { return x.view({-1, 1, 1}).expand({-1, 2, 3}).transpose(1, 2); });
  check([](const at::Tensor& x) { return (x + 1).set_requires_grad(true); });
  check([](const at::Tensor& x) { return torch::complex(x, x).conj(); });
  check([](const at::Tensor& x) { return x.narrow(1, 0, 0); });
}

TEST(Map, NamesTheFirstSampleOfAnotherShapeOnAnyNumberOfThreads) {
  for (const int64_t threads : {1, 3}) {
    const Dataset mixed = tens(64).map(
        [](Batch sample) {
          const int64_t id = sample.ids.item<int64_t>();
          if (id >= 40) sample.input = torch::zeros({1, id});
          return sample;
        },
        {.threads = threads});
    for (int i = 0; i < 5; ++i)
      expect_error<DataError>([&] { mixed.read_all(); }, "LS-SAMPLE-SHAPE", {"[1, 1]", "[1, 40]"});
  }
}

TEST(Tensors, GiveTheRowsThatAreAskedFor) {
  const torch::Tensor wide = torch::arange(60).view({5, 3, 4});
  for (const torch::Tensor& rows :
       {wide, wide.transpose(0, 1), wide.to(torch::kByte), torch::complex(wide * 1.0, wide * 2.0).conj()}) {
    const Dataset dataset = data::from_tensors(rows, torch::arange(rows.size(0)) + 7);
    const Batch some = dataset.read(Numbers{2, 0, 2});
    EXPECT_TRUE(torch::equal(some.input, rows.index_select(0, torch::tensor({2, 0, 2}))));
    EXPECT_TRUE(torch::equal(some.target, torch::tensor({9, 7, 9})));
    EXPECT_EQ(dataset.read(Numbers{}).input.size(0), 0);
  }
}

TEST(MapRows, ChangesAllRowsAtOnce) {
  int calls = 0;
  const Dataset doubled = tens(6).map_rows([&](Batch rows) {
    ++calls;
    rows.input = rows.input * 2;
    return rows;
  });
  EXPECT_EQ(inputs_of(doubled), (Numbers{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(calls, 1);
}

TEST(Concatenate, RefusesMoreSamplesThanANumberCounts) {
  const Dataset one = data::from_tensors(torch::zeros({1, 1}), torch::zeros({1}));
  const Dataset half = one.repeat(int64_t{1} << 62);
  expect_error<UsageError>([&] { half.concatenate(half); }, "LS-OPTION", {"4611686018427387904 samples"});
  EXPECT_EQ(half.concatenate(half.skip(1)).size(), INT64_MAX);
}

TEST(Stages, OfTheProgramsOwnAreStagesLikeOthers) {
  class Reversed final : public data::Stage {
   public:
    using Stage::Stage;
    Batch read(std::span<const int64_t> ids) const override {
      Numbers turned;
      for (const int64_t id : ids) turned.push_back(size() - 1 - id);
      return read_upstream(turned);
    }
    std::string describe() const override { return "reversed " + upstream().describe(); }

   protected:
    std::shared_ptr<const data::Source> with(const Dataset& upstream) const override {
      return std::make_shared<Reversed>(upstream);
    }
  };
  EXPECT_EQ(inputs_of(Dataset(std::make_shared<Reversed>(tens(3))).take(2)), (Numbers{2, 1}));
  const Dataset shuffled = tens(20).shuffle(1);
  const Dataset reversed(std::make_shared<Reversed>(shuffled));
  Numbers expected = inputs_of(shuffled.at_epoch(0, 4));
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(inputs_of(reversed.at_epoch(0, 4)), expected);
}

TEST(Stages, RefuseWhatCannotBe) {
  const Dataset ten = tens(10);
  expect_error<UsageError>([&] { ten.take(-1); }, "LS-OPTION", {"Dataset::take", "-1"});
  expect_error<UsageError>([&] { ten.skip(-1); }, "LS-OPTION", {"Dataset::skip"});
  expect_error<UsageError>([&] { ten.shard(0, 0); }, "LS-OPTION", {"Dataset::shard"});
  expect_error<UsageError>([&] { ten.shard(2, 2); }, "LS-OPTION", {"shard 2 of 2"});
  expect_error<UsageError>([&] { ten.repeat(-1); }, "LS-OPTION", {"Dataset::repeat"});
  expect_error<UsageError>([&] { ten.repeat(std::numeric_limits<int64_t>::max()); }, "LS-OPTION", {"10 samples"});
  expect_error<UsageError>([&] { ten.batch(0); }, "LS-OPTION", {"Dataset::batch"});
  expect_error<UsageError>([&] { ten.padded_batch(0); }, "LS-OPTION", {"Dataset::padded_batch"});
  expect_error<UsageError>([&] { ten.prefetch(-1); }, "LS-OPTION", {"Dataset::prefetch"});
  expect_error<UsageError>([&] { ten.map([](Batch b) { return b; }, {.threads = -1}); }, "LS-OPTION",
                           {"MapOptions::threads", "-1"});
  const Dataset empty;
  expect_error<UsageError>([&] { empty.take(1); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { empty.zip(ten); }, "LS-EMPTY-HANDLE");
  expect_error<UsageError>([&] { ten.zip(empty); }, "LS-EMPTY-HANDLE");
}

TEST(FromTensors, TakesFurtherTensorsByName) {
  const Dataset with = data::from_tensors(torch::zeros({3, 1}), torch::arange(3), {{"box/left", torch::arange(3) + 5}});
  EXPECT_TRUE(torch::equal(with.read(Numbers{2, 0}).more.at("box/left"), torch::tensor({7, 5})));
  expect_error<UsageError>(
      [&] {
        data::from_tensors(torch::zeros({3, 1}), torch::arange(3), {{"weight", torch::arange(2)}});
      },
      "LS-BATCH", {"weight", "Long [2]"});
}

struct Squares : torch::data::datasets::Dataset<Squares> {
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {torch::full({2}, i), torch::tensor(i * i)};
  }
  decltype(std::declval<torch::data::datasets::TensorDataset>().size()) size() const override { return 5; }
};

TEST(FromTorch, TakesMapStyleDataSetsAndTheirTransforms) {
  const Dataset squares = data::from_torch(Squares());
  EXPECT_EQ(squares.size(), 5);
  const Batch some = squares.read(Numbers{3, 1});
  EXPECT_TRUE(torch::equal(some.input, torch::tensor({{3, 3}, {1, 1}})));
  EXPECT_TRUE(torch::equal(some.target, torch::tensor({9, 1})));
  EXPECT_EQ(squares.read(Numbers{}).input.sizes(), (Numbers{0, 2}));
  const Dataset stacked = data::from_torch(Squares().map(torch::data::transforms::Stack<>()));
  EXPECT_TRUE(torch::equal(stacked.read(Numbers{4}).target, torch::tensor({16})));
  EXPECT_EQ(stacked.read(Numbers{}).input.sizes(), (Numbers{0, 2}));
  const Dataset tensors = data::from_torch(torch::data::datasets::TensorDataset(torch::arange(6).view({3, 2})));
  EXPECT_TRUE(torch::equal(tensors.read(Numbers{2}).input, torch::tensor({{4, 5}})));
  EXPECT_EQ(tensors.read(Numbers{2}).target.sizes(), (Numbers{1, 0}));
}

}  // namespace
}  // namespace lockstep
