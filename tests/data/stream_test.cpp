// Streams and their stages.
#include "lockstep/data/stream.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/data/stages/stream_stage.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::numbers_in;
using testing::RecordsInMemory;
using testing::targets_of;
using Numbers = std::vector<int64_t>;

Numbers elements_of(const Stream& stream, uint64_t seed = 0) { return targets_of(stream.read_all(seed)); }

Numbers up_to(int64_t count) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(RecordStreams, ComeInTheOrderOfFilesOrInTurn) {
  EXPECT_EQ(elements_of(numbers_in({3, 0, 4})), up_to(7));
  EXPECT_EQ(elements_of(numbers_in({3, 1, 2}, {.cycle_length = 2})), (Numbers{0, 3, 1, 2, 4, 5}));
  EXPECT_EQ(elements_of(numbers_in({4, 4}, {.cycle_length = 2, .block_length = 3})), (Numbers{0, 1, 2, 4, 5, 6, 3, 7}));
  const auto all = numbers_in({2, 3}).read_all();
  std::set<int64_t> ids;
  for (const Batch& one : all) ids.insert(one.ids.item<int64_t>());
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_TRUE(ids.contains(int64_t{1} << 40)) << "file 1, record 0";
}

TEST(RecordStreams, ThatCannotBeParsedAreNamed) {
  const Stream stream = data::from_records(
      std::make_shared<RecordsInMemory>(std::vector<std::vector<std::string>>{{"1", "2"}, {"3", "four", "5"}}),
      testing::parse_number);
  const auto reader = stream.open();
  Batch element;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reader->next(element));
  expect_error<DataError>([&] { reader->next(element); }, "LS-RECORD", {"record 1", "file1", "byte 100"});
  EXPECT_TRUE(reader->next(element)) << "it goes on behind the record";
  EXPECT_EQ(element.target.item<int64_t>(), 5);
}

TEST(RecordStreams, AreLeftOutAndCountedWhereTheyCannotBeRead) {
  const auto files = std::make_shared<RecordsInMemory>(
      std::vector<std::vector<std::string>>{{"1", "!", "2"}, {"gone"}, {"3", "four", "stuck", "6"}, {"7"}});
  const Stream stream = data::from_records(files, testing::parse_number).map([](Batch sample) {
    if (sample.target.item<int64_t>() == 7) throw std::runtime_error("seven");
    return sample;
  });
  data::StreamPass pass;
  pass.skipped = std::make_shared<data::SkippedSamples>();
  const auto reader = stream.open(pass);
  std::vector<Batch> all;
  for (Batch element; reader->next(element);) all.push_back(element);
  EXPECT_EQ(targets_of(all), (Numbers{1, 2, 3}));
  EXPECT_EQ(pass.skipped->count(), 6) << "checksum, missing file, parse, twice stuck, map";
}

TEST(Stages, OfStreamsChooseElements) {
  const Stream ten = numbers_in({4, 6});
  EXPECT_EQ(elements_of(ten.take(5)), up_to(5));
  EXPECT_EQ(elements_of(ten.skip(7)), (Numbers{7, 8, 9}));
  EXPECT_EQ(elements_of(ten.shard(4, 1)), (Numbers{1, 5, 9}));
  EXPECT_EQ(elements_of(ten.filter([](const Batch& b) { return b.target.item<int64_t>() % 4 == 0; })),
            (Numbers{0, 4, 8}));
  EXPECT_EQ(elements_of(ten.take(2).repeat(2)), (Numbers{0, 1, 0, 1}));
  EXPECT_EQ(elements_of(ten.take(3).repeat().take(7)), (Numbers{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(elements_of(ten.take(0).repeat()), Numbers{}) << "and not for ever";
  EXPECT_EQ(elements_of(ten.take(2).concatenate(ten.skip(8))), (Numbers{0, 1, 8, 9}));
  EXPECT_EQ(elements_of(data::interleave({ten.take(2), ten.skip(7)}, {.cycle_length = 2})), (Numbers{0, 7, 1, 8, 9}));
}

TEST(Stages, OfStreamsKnowWhetherTheyEnd) {
  const auto is_endless = [](const Stream& stream) { return internal::is_endless(*stream.source()); };
  const Stream ten = numbers_in({10});
  const Stream endless = ten.repeat();
  EXPECT_FALSE(is_endless(ten));
  EXPECT_FALSE(is_endless(ten.repeat(3)));
  EXPECT_TRUE(is_endless(endless));
  EXPECT_FALSE(is_endless(endless.take(7)));
  EXPECT_TRUE(is_endless(endless.take(7).repeat()));
  EXPECT_FALSE(is_endless(endless.repeat(0)));
  const auto same = [](Batch sample) { return sample; };
  const auto all = [](const Batch&) { return true; };
  EXPECT_TRUE(is_endless(endless.skip(2).shard(2, 1).map(same).filter(all).shuffle(4).batch(2).prefetch(1).repeat(2)));
  EXPECT_TRUE(is_endless(endless.zip(endless)));
  EXPECT_FALSE(is_endless(endless.zip(ten)));
  EXPECT_FALSE(is_endless(ten.zip(endless)));
  EXPECT_TRUE(is_endless(ten.concatenate(endless)));
  EXPECT_TRUE(is_endless(data::interleave({ten, endless}, {.cycle_length = 2})));
  EXPECT_FALSE(is_endless(data::interleave({ten, ten})));
  EXPECT_TRUE(is_endless(endless.interleave([&](const Batch&) { return ten; })));
  EXPECT_FALSE(is_endless(ten.interleave([&](const Batch&) { return ten; })));
}

TEST(Stages, OfStreamsGroupElements) {
  const auto groups = numbers_in({4, 3}).batch(3).read_all();
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[1].size(), 3);
  EXPECT_EQ(groups[2].size(), 1);
  EXPECT_EQ(groups[1].input.sizes(), (Numbers{3, 2}));
  EXPECT_EQ(numbers_in({4, 3}).batch(3, true).read_all().size(), 2u);
  const auto ragged = numbers_in({3}).map([](Batch sample) {
    sample.input = torch::ones({1, sample.target.item<int64_t>() + 1});
    return sample;
  });
  EXPECT_TRUE(torch::equal(ragged.padded_batch(3).read_all()[0].input,
                           torch::tensor({{1.0f, 0.0f, 0.0f}, {1.0f, 1.0f, 0.0f}, {1.0f, 1.0f, 1.0f}})));
  expect_error<DataError>([&] { ragged.batch(3).read_all(); }, "LS-SAMPLE-SHAPE");
}

TEST(Stages, OfStreamsJoinElements) {
  const auto both = numbers_in({3}).zip(numbers_in({5}).skip(1), "next").read_all();
  ASSERT_EQ(both.size(), 3u);
  EXPECT_EQ(both[1].more.at("next/target").item<int64_t>(), 2);
  const Stream made = numbers_in({3}).interleave(
      [](const Batch& element) { return numbers_in({4}).take(element.target.item<int64_t>()); }, {.cycle_length = 2});
  EXPECT_EQ(elements_of(made), (Numbers{0, 0, 1}));
}

TEST(Shuffle, OfAStreamIsAPermutationOfEachWindow) {
  const Stream shuffled = numbers_in({20}).shuffle(8, 3);
  const Numbers all = elements_of(shuffled);
  ASSERT_EQ(all.size(), 20u);
  for (std::size_t window = 0; window < 20; window += 8) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(window);
    Numbers some(begin, all.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(window + 8, 20)));
    EXPECT_FALSE(std::is_sorted(some.begin(), some.end()));
    std::sort(some.begin(), some.end());
    EXPECT_EQ(some.front(), static_cast<int64_t>(window));
    EXPECT_EQ(some.back() - some.front() + 1, static_cast<int64_t>(some.size()));
  }
  EXPECT_EQ(elements_of(shuffled), all);
  EXPECT_NE(elements_of(numbers_in({20}).shuffle(8, 4)), all);
  const auto reader = shuffled.open({.pass = {.epoch = 1}});
  Numbers other;
  for (Batch element; reader->next(element);) other.push_back(element.target.item<int64_t>());
  EXPECT_NE(other, all);
}

TEST(Map, OfAStreamKeepsOrderAndDrawsTheSameOnAnyThreads) {
  const auto noisy = [](int64_t threads) {
    return numbers_in({30}).map(
        [](Batch sample, const at::Generator& random) {
          sample.input = torch::rand({1, 2}, random) + torch::rand({1, 2});
          return sample;
        },
        {.threads = threads});
  };
  const auto one = noisy(1).read_all(9);
  const auto four = noisy(4).read_all(9);
  ASSERT_EQ(one.size(), four.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i].input, four[i].input));
    EXPECT_EQ(four[i].target.item<int64_t>(), static_cast<int64_t>(i));
  }
  EXPECT_FALSE(torch::equal(noisy(1).read_all(8)[0].input, one[0].input));
}

TEST(Cache, OfAStreamReadsItOnce) {
  const auto files = testing::files_of({3, 4});
  const Stream cached = data::from_records(files, testing::parse_number).cache();
  EXPECT_EQ(elements_of(cached), up_to(7));
  EXPECT_EQ(elements_of(cached), up_to(7));
  EXPECT_EQ(files->read, 7);
}

TEST(Generators, AreNumberedAndContinued) {
  const Stream squares = data::from_generator(
      [](const data::GeneratorStart& start) -> data::GeneratorFunction {
        return [i = start.element]() mutable -> std::optional<Batch> {
          if (i == 6) return std::nullopt;
          Batch made{.input = torch::zeros({2, 1}), .target = torch::full({2}, i * i, torch::kLong)};
          ++i;
          return made;
        };
      },
      "squares");
  const auto all = squares.read_all();
  ASSERT_EQ(all.size(), 6u);
  EXPECT_TRUE(torch::equal(all[2].ids, torch::tensor({4, 5})));
  const Stream plain = data::from_generator(
      [] {
        return data::GeneratorFunction([i = int64_t{0}]() mutable -> std::optional<Batch> {
          if (i == 3) throw std::runtime_error("the sensor is off");
          return Batch{.input = torch::zeros({1, 1}), .target = torch::full({1}, i++, torch::kLong)};
        });
      },
      "a sensor");
  expect_error<DataError>([&] { plain.read_all(); }, "LS-SOURCE", {"a sensor", "element 3", "the sensor is off"});
}

/// One row for each number below `count`.
Stream counted(int64_t count) {
  return data::from_generator(
      [count](const data::GeneratorStart& start) -> data::GeneratorFunction {
        return [i = start.element, count]() mutable -> std::optional<Batch> {
          if (i == count) return std::nullopt;
          Batch made{.input = torch::full({1, 1}, i, torch::kFloat), .target = torch::full({1}, i, torch::kLong)};
          ++i;
          return made;
        };
      },
      "a counter");
}

TEST(Cache, OfAStreamIsNotChangedByWorkInPlace) {
  const Stream cached = counted(4).cache();
  const Stream doubled = cached.map([](Batch b) {
    b.input.mul_(2);
    b.target.mul_(2);
    return b;
  });
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(elements_of(doubled), (Numbers{0, 2, 4, 6})) << epoch;
  EXPECT_EQ(elements_of(cached), up_to(4));
}

TEST(Generators, ThatGiveOddElementsAreNamed) {
  const auto odd = [](const std::function<void(Batch&)>& change) {
    return data::from_generator(
        [change] {
          return data::GeneratorFunction([change, i = 0]() mutable -> std::optional<Batch> {
            if (i++ == 2) return std::nullopt;
            Batch made{.input = torch::zeros({2, 1}), .target = torch::zeros({2})};
            change(made);
            return made;
          });
        },
        "an odd generator");
  };
  const std::vector<torch::Tensor> wrong_ids{
      torch::arange(2, torch::kInt), torch::zeros({2}), torch::arange(3),
      torch::arange(2).view({2, 1}), torch::tensor(3),  torch::arange(2).to_sparse()};
  for (const torch::Tensor& ids : wrong_ids) {
    const Stream stream = odd([&ids](Batch& b) { b.ids = ids; });
    expect_error<DataError>([&] { stream.read_all(); }, "LS-SAMPLE-SHAPE", {"an odd generator", "ids"});
  }
  const Stream quantized = odd([](Batch& b) { b.input = torch::quantize_per_tensor(b.input, 0.1, 0, torch::kQInt8); });
  expect_error<DataError>([&] { quantized.read_all(); }, "LS-SAMPLE-SHAPE", {"an odd generator", "quantized"});
  const Stream good = odd([](Batch& b) {
    b.ids = torch::tensor({7, 5});
    b.padding = 1;
    b.global_size = 9;
  });
  const auto all = good.read_all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(torch::equal(all[0].ids, torch::tensor({7, 5})));
  EXPECT_EQ(all[0].samples(), 2) << "padding is not the generator's to say";
}

TEST(Interleave, RefusesAPlaceInAStreamThatIsNotThereNow) {
  const auto made = [](int64_t count) {
    return counted(count).interleave([](const Batch&) { return counted(3); }, {.cycle_length = 2});
  };
  const auto reader = made(6).open();
  Batch element;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(reader->next(element));
  const data::StreamPosition there = reader->position();
  EXPECT_TRUE(made(6).source()->open({}, there)->next(element));
  expect_error<DataError>([&] { made(2).source()->open({}, there); }, "LS-DATA-CHANGED", {"a counter"});
}

/// Pipelines with every stage, of finite length.
const std::map<std::string, Stream>& pipelines() {
  static const auto* const all = [] {
    const auto odd = [](const Batch& b) { return b.target.item<int64_t>() % 2 == 1; };
    const auto noise = [](Batch sample) {
      sample.input = sample.input + torch::rand({sample.size(), 2});
      return sample;
    };
    const auto ragged = [](Batch sample) {
      sample.input = torch::ones({1, sample.target.item<int64_t>() % 4 + 1});
      return sample;
    };
    const Stream records = numbers_in({5, 0, 7, 1}, {.cycle_length = 2, .block_length = 2});
    const Stream pairs = data::from_generator([] {
      return data::GeneratorFunction([i = int64_t{0}]() mutable -> std::optional<Batch> {
        if (i == 6) return std::nullopt;
        return Batch{.input = torch::full({2, 1}, i, torch::kFloat), .target = torch::full({2}, i++, torch::kLong)};
      });
    });
    return new std::map<std::string, Stream>{
        {"records", records},
        {"generator", pairs},
        {"generator_with_start", counted(7)},
        {"filter", records.filter(odd)},
        {"map", records.map(noise)},
        {"threads", records.map(noise, {.threads = 3})},
        {"shuffle", records.shuffle(4, 1)},
        {"batch", records.batch(3)},
        {"padded_batch", records.map(ragged).padded_batch(3)},
        {"prefetch", records.shuffle(4).prefetch(2)},
        {"take", records.take(9)},
        {"skip", records.skip(4)},
        {"shard", records.shard(3, 2)},
        {"repeat", records.shuffle(3).repeat(3)},
        {"zip", records.zip(records.skip(2))},
        {"concatenate", records.concatenate(numbers_in({3}))},
        {"interleave",
         records.interleave([](const Batch& b) { return numbers_in({4}).skip(b.target.item<int64_t>() % 4); },
                            {.cycle_length = 3})},
        {"interleave_of_several",
         data::interleave({records, pairs, counted(3)}, {.cycle_length = 2, .block_length = 3})},
        {"cache", records.cache()},
        {"dataset", data::from_dataset(data::from_tensors(torch::rand({20, 2}), torch::arange(20)).shuffle(2))},
        {"all", records.filter(odd).map(noise).shuffle(3, 5).repeat(2).batch(2).map(noise, {.threads = 2}).take(5)}};
  }();
  return *all;
}

class Positions : public ::testing::TestWithParam<std::string> {};

TEST_P(Positions, ContinueAtTheVeryNextElement) {
  const Stream& stream = pipelines().at(GetParam());
  const data::StreamPass pass{.pass = {.seed = 4, .epoch = 2}, .shuffle = true};
  std::vector<Batch> whole;
  std::vector<data::StreamPosition> positions;
  const auto reader = stream.open(pass);
  positions.push_back(reader->position());
  for (Batch element; reader->next(element);) {
    whole.push_back(element);
    positions.push_back(reader->position());
  }
  ASSERT_GT(whole.size(), 2u);
  for (std::size_t stop = 0; stop < positions.size(); ++stop) {
    const auto again = stream.source()->open(pass, positions[stop]);
    std::size_t at = stop;
    for (Batch element; again->next(element); ++at) {
      ASSERT_LT(at, whole.size());
      EXPECT_TRUE(torch::equal(element.input, whole[at].input)) << "element " << at << " after a stop at " << stop;
      EXPECT_TRUE(torch::equal(element.ids, whole[at].ids));
    }
    EXPECT_EQ(at, whole.size());
  }
}

std::vector<std::string> names_of_pipelines() {
  std::vector<std::string> names;
  for (const auto& [name, stream] : pipelines()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(OfEachStage, Positions, ::testing::ValuesIn(names_of_pipelines()),
                         [](const auto& each) { return each.param; });

TEST(Positions, ThatAreNoneAreRefused) {
  for (const auto& [name, stream] : pipelines()) {
    for (const data::StreamPosition& position :
         {data::StreamPosition{-1}, data::StreamPosition{std::numeric_limits<int64_t>::max()},
          data::StreamPosition{1, -5, 3, 9}}) {
      try {
        const auto reader = stream.source()->open({}, position);
        Batch element;
        while (reader->next(element)) continue;
      } catch (const UsageError& error) {
        EXPECT_EQ(error.code(), "LS-STATE-MISFIT") << name;
      }
    }
  }
}

TEST(Shards, OfFilesAreAllOfTheElements) {
  for (const Stream& stream :
       {numbers_in({3, 1, 4, 1, 5}), numbers_in({3, 1, 4, 1, 5}, {.cycle_length = 2}).shuffle(3).batch(2),
        numbers_in({2, 3, 4}).concatenate(numbers_in({1, 5, 2})).repeat(1)}) {
    EXPECT_GE(stream.source()->num_shards(), 3);
    std::multiset<int64_t> ids;
    for (int64_t shard = 0; shard < 3; ++shard) {
      const auto reader = stream.open({.pass = {.epoch = 1}, .shuffle = true, .shard_index = shard, .shard_count = 3});
      for (Batch element; reader->next(element);) {
        for (int64_t i = 0; i < element.size(); ++i) ids.insert(element.ids[i].item<int64_t>());
      }
    }
    std::multiset<int64_t> expected;
    for (const Batch& element : stream.read_all()) {
      for (int64_t i = 0; i < element.size(); ++i) expected.insert(element.ids[i].item<int64_t>());
    }
    EXPECT_EQ(ids, expected);
  }
  EXPECT_EQ(numbers_in({3, 1}).take(2).source()->num_shards(), 1);
}

TEST(StreamHandle, ThatIsEmptySaysSoAndRefusesWhatCannotBe) {
  const Stream empty;
  expect_error<UsageError>([&] { empty.take(1); }, "LS-EMPTY-HANDLE", {"Stream"});
  const Stream ten = numbers_in({10});
  expect_error<UsageError>([&] { ten.take(-1); }, "LS-OPTION", {"Stream::take"});
  expect_error<UsageError>([&] { ten.shuffle(0); }, "LS-OPTION", {"Stream::shuffle"});
  expect_error<UsageError>([&] { ten.shard(3, 3); }, "LS-OPTION", {"shard 3 of 3"});
  expect_error<UsageError>([&] { ten.repeat(-2); }, "LS-OPTION", {"Stream::repeat"});
  expect_error<UsageError>([&] { data::interleave({}); }, "LS-OPTION", {"interleave"});
  expect_error<UsageError>([&] { data::interleave({ten}, {.cycle_length = 0}); }, "LS-OPTION",
                           {"InterleaveOptions::cycle_length"});
  expect_error<UsageError>([&] { data::from_records(nullptr, testing::parse_number); }, "LS-OPTION", {"from_records"});
}

}  // namespace
}  // namespace lockstep
