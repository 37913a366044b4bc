// Samples that cannot be used and are left out, of data sets and of streams; on several workers too.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/gzip.h"
#include "tests/support/open_files.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::joined;
using testing::lanes;
using testing::Numbers;
using testing::numbers;
using testing::numbers_in;
using testing::run_workers;
using testing::sorted;
using testing::Steps;
using testing::steps_of;
using testing::targets_of;
using testing::WorkersCase;

TEST(Skipping, CountsTheSameOnAllWorkers) {
  const auto reads = [](const std::function<DistributedDataset(Strategy&, const DistributeOptions&)>& distribute) {
    return run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
      const auto data = distribute(strategy, {.global_batch = 4, .on_error = OnError::kSkip});
      int64_t samples = 0;
      Steps steps;
      for (const auto& batch : data.epoch(0)) {
        auto& step = steps.emplace_back();
        samples += batch.begin()->global_size;
        for (const Batch& part : batch) step.push_back(targets_of(part));
      }
      return std::pair{steps, std::pair{samples, data.skipped()}};
    });
  };
  const auto bad = [](Batch sample) {
    if (sample.target.item<int64_t>() % 5 == 3) throw std::runtime_error("no such colour");
    return sample;
  };
  for (const auto& results :
       {reads([&](Strategy&s, const DistributeOptions&o) { return s.distribute(numbers(19).map(bad), o); }),
        reads([&](Strategy&s, const DistributeOptions&o) {
          return s.distribute(numbers_in({12, 7}).map(bad), o);
        }),
        reads([&](Strategy&s, const DistributeOptions&o) { return s.distribute(numbers_in({19}).map(bad), o); })}) {
    EXPECT_EQ(results[0].second, (std::pair<int64_t, int64_t>{15, 4}));
    EXPECT_EQ(results[1].second, results[0].second);
    const Numbers all = sorted(joined({results[0].first, results[1].first}));
    EXPECT_EQ(all.size(), 15u);
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 15u);
  }
}

/// Steps of six numbers of which some cannot be read. The map takes the place of a decoder.
Steps skipping(const std::set<int64_t>& bad, DistributeOptions options, int64_t replicas, int64_t skipped) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas});
  options.on_error = OnError::kSkip;
  const auto data = strategy.distribute(numbers(6).map([bad](Batch sample) {
    if (bad.contains(sample.target.item<int64_t>())) throw std::runtime_error("no such colour");
    sample.input = torch::zeros({1, 3});
    return sample;
  }),
                                        options);
  Steps steps;
  for (const auto& batch : data.epoch(0)) {
    auto& step = steps.emplace_back();
    for (const Batch& part : batch) {
      EXPECT_EQ(part.input.sizes(), (Numbers{part.size(), 3}));
      EXPECT_EQ(part.ids.size(0), part.size());
      step.push_back(targets_of(part));
    }
  }
  EXPECT_EQ(data.skipped(), skipped);
  return steps;
}

TEST(Skipping, GoesOnWhereTheFirstSamplesCannotBeRead) {
  EXPECT_EQ(skipping({0}, {.global_batch = 2}, 2, 1), (Steps{{{}, {1}}, {{2}, {3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0, 1}, {.global_batch = 2}, 2, 2), (Steps{{{}, {}}, {{2}, {3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0, 1}, {.global_batch = 4}, 2, 2), (Steps{{{}, {2, 3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0}, {.global_batch = 5}, 2, 1), (Steps{{{1, 2}, {3, 4}}, {{5}, {}}}));
  EXPECT_EQ(skipping({0}, {.global_batch = 4, .remainder = Remainder::kPad}, 4, 1),
            (Steps{{{}, {1}, {2}, {3}}, {{4}, {5}, {-100}, {-100}}}));
  EXPECT_EQ(skipping({0, 4, 5}, {.global_batch = 4, .remainder = Remainder::kPad, .prefetch = 2}, 2, 3),
            (Steps{{{1}, {2, 3}}, {{}, {-100, -100}}}));
}

TEST(Skipping, LeavesOutSamplesOfAnotherShapeThanMostOfTheirPartHave) {
  const auto other = [](Batch sample) {
    const int64_t number = sample.target.item<int64_t>();
    sample.input = torch::zeros({1, number == 4 || number == 11 ? 5 : 3});
    return sample;
  };
  const auto targets = [](const DistributedDataset& data) {
    Numbers all;
    for (const auto& batch : data.epoch(0)) {
      for (const Batch& part : batch) {
        const Numbers some = targets_of(part);
        all.insert(all.end(), some.begin(), some.end());
        EXPECT_EQ(part.input.sizes(), (Numbers{part.size(), 3}));
      }
    }
    EXPECT_EQ(data.skipped(), 2);
    return all;
  };
  const Numbers expected{0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14};
  const DistributeOptions skip{.global_batch = 6, .on_error = OnError::kSkip};
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  EXPECT_EQ(targets(strategy.distribute(numbers(15).map(other), skip)), expected);
  EXPECT_EQ(targets(strategy.distribute(numbers_in({15}).map(other), skip)), expected);
  const auto by_workers = run_workers(
      WorkersCase{2, 2}, [&](Strategy& one) { return targets(one.distribute(numbers(15).map(other), skip)); });
  EXPECT_EQ(sorted(Steps{{by_workers[0], by_workers[1]}}), expected);
  expect_error<DataError>([&] { targets(strategy.distribute(numbers_in({15}).map(other), {.global_batch = 15})); },
                          "LS-SAMPLE-SHAPE", {"[1, 3] in record 0 of 'file0'", "[1, 5] in record 4 of 'file0'"});
}

/// An endless stream of elements in turn: the rows and the width of each.
Stream shapes(const std::vector<std::pair<int64_t, int64_t>>& elements) {
  return data::from_generator([elements]() -> data::GeneratorFunction {
    return [elements, next = std::size_t{0}]() mutable -> std::optional<Batch> {
      const auto [rows, width] = elements[next++ % elements.size()];
      return Batch{.input = torch::zeros({rows, width}), .target = torch::arange(rows)};
    };
  });
}

TEST(Skipping, OfAnotherShapeVotesByRowsAndReadsNoMoreThanThePartOfEachStep) {
  struct Case {
    std::vector<std::pair<int64_t, int64_t>> elements;
    int64_t global_batch;
    std::vector<std::pair<int64_t, int64_t>> steps;  // rows and width of the first ones
    int64_t skipped;
  };
  for (const Case& one : std::vector<Case>{
           {{{1, 5}, {1, 3}, {1, 3}, {1, 3}}, 2, {{1, 5}, {2, 3}, {1, 5}}, 2},          // the first one of equals
           {{{1, 3}, {1, 3}, {1, 3}, {1, 5}, {1, 5}, {1, 3}}, 6, {{4, 3}, {4, 3}}, 4},  // kept, whatever comes later
           {{{1, 5}, {1, 5}, {6, 3}}, 8, {{6, 3}, {6, 3}}, 4},                          // rows count, not elements
       }) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
    const auto data =
        strategy.distribute(shapes(one.elements), {.global_batch = one.global_batch, .on_error = OnError::kSkip});
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (const auto& batch : data.epoch(0)) {
      steps.emplace_back(batch.begin()->input.size(0), batch.begin()->input.size(1));
      EXPECT_EQ(batch.begin()->global_size, steps.back().first);
      if (steps.size() == one.steps.size()) break;
    }
    EXPECT_EQ(steps, one.steps);
    EXPECT_EQ(data.skipped(), one.skipped);
  }
}

TEST(Skipping, DropEndsWhereTheDataEndsAndNotWhereASampleIsLeftOut) {
  const auto other = [](Batch sample) {
    sample.input = torch::zeros({1, sample.target.item<int64_t>() == 1 ? 5 : 3});
    return sample;
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  for (const Stream& stream : {numbers_in({10}).map(other)}) {
    const auto data =
        strategy.distribute(stream, {.global_batch = 4, .remainder = Remainder::kDrop, .on_error = OnError::kSkip});
    EXPECT_EQ(steps_of(data, 0), (Steps{{{0, 2, 3}}, {{4, 5, 6, 7}}}));
  }
}

TEST(Skipping, GivesEmptyBatchesWhereNothingCanBeRead) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  for (const Remainder remainder : {Remainder::kKeep, Remainder::kPad}) {
    const auto data =
        strategy.distribute(numbers(3).map([](Batch) -> Batch { throw std::runtime_error("no such colour"); }),
                            {.global_batch = 2, .remainder = remainder, .on_error = OnError::kSkip});
    int64_t steps = 0;
    for (const auto& batch : data.epoch(0)) {
      ++steps;
      for (const Batch& part : batch) EXPECT_EQ(part.size() + part.global_size, 0);
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(data.skipped(), 3);
  }
}

/// Reads the rest of an epoch in steps of two; before the second step something is short.
class SkippingWhatIsShort : public testing::ScratchFolder {
 protected:
  template <class Data, class Short>
  void expect_read_later(const Data& data, const Short& while_it_is_short) const {
    MirroredStrategy strategy({.devices = lanes(1)});
    const auto dealt = strategy.distribute(data, {.global_batch = 2, .on_error = OnError::kSkip});
    auto it = dealt.epoch(0).begin();
    while_it_is_short([&] { ++it; });
    int64_t samples = 0;
    for (; it != dealt.epoch(0).end(); ++it) samples += it->begin()->size();
    EXPECT_EQ(samples, 6);
    EXPECT_EQ(dealt.skipped(), 0);
  }
};

TEST_F(SkippingWhatIsShort, FilesThatCannotBeOpenedForLackOfDescriptorsAreReadLater) {
  std::vector<std::string> paths;
  for (const char* const name : {"a", "b", "c"}) paths.push_back(write(name, "1\n2\n"));
  const auto without_files = [](const auto& step) {
    const testing::NoFiles none;
    expect_error<DataError>(step, "LS-FILE-LIMIT", {"ulimit -n"});
  };
  const auto lines = data::from_records(data::lines(paths), [](const std::string& text, const data::RecordPlace&) {
    return Batch{.input = torch::full({1, 1}, std::stod(text))};
  });
  expect_read_later(lines, without_files);
  // In a map, the lack is the reason within the error.
  int64_t number = 0;
  const auto opens = [paths, &number](Batch sample) {
    if (++number > 2) data::lines({paths[0]})->open(0, {});
    return sample;
  };
  expect_read_later(numbers(6).map(opens), [](const auto& step) {
    const testing::NoFiles none;
    expect_error<DataError>(step, "LS-MAP", {"no file descriptor is left"});
  });
}

TEST_F(SkippingWhatIsShort, SamplesForWhichThereIsNoMemoryAreReadLater) {
  bool is_short = false;
  const auto while_short = [&](const char* text) {
    return [&is_short, text](const auto& step) {
      is_short = true;
      expect_error<DataError>(step, "LS-MAP", {text});
      is_short = false;
    };
  };
  const auto fails = [&](Batch sample) {
    if (is_short) throw std::bad_alloc();
    return sample;
  };
  const auto allocates = [&](Batch sample) {
    if (is_short) sample.input = torch::empty({int64_t{1} << 50});
    return sample;
  };
  expect_read_later(numbers(6).map(fails), while_short("bad_alloc"));
  expect_read_later(numbers_in({6}).map(fails), while_short("bad_alloc"));
  expect_read_later(numbers(6).map(allocates), while_short("allocate memory"));
  const auto keeps = [&](const Batch&) { return is_short ? throw std::bad_alloc() : true; };
  expect_read_later(numbers_in({6}).filter(keeps), while_short("bad_alloc"));
}

class SkippingRests : public testing::ScratchFolder {};

TEST_F(SkippingRests, OfDamagedFilesCountAsOneEachAndAreAlwaysSaid) {
  const std::string packed = testing::gzip_member("0\n1\n2\n3\n");
  std::vector<std::string> paths;
  std::string all_bad;
  for (int i = 0; i < 10; ++i) all_bad += "no number\n";
  paths.push_back(write("bad", all_bad));
  paths.push_back(write("behind.gz", packed + "garbage" + packed));
  paths.push_back(write("cut.gz", packed.substr(0, packed.size() - 3)));
  paths.push_back(write("other.zst", "\x28\xb5\x2f\xfd"));
  paths.push_back(write("good.gz", packed + packed));
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto parse = [](const std::string& text, const data::RecordPlace&) {
    return Batch{.input = torch::zeros({1, 1}), .target = torch::full({1}, std::stod(text), torch::kLong)};
  };
  const auto data = strategy.distribute(data::from_records(data::lines(paths), parse),
                                        {.global_batch = 4, .on_error = OnError::kSkip});
  int64_t samples = 0;
  for (const auto& batch : data.epoch(0)) samples += batch.begin()->global_size;
  set_log_sink({});
  EXPECT_EQ(samples, 4 + 4 + 8);
  EXPECT_EQ(data.skipped(), 10 + 1 + 1 + 1);
  for (const char* name : {"behind.gz", "cut.gz", "other.zst"}) {
    const auto says = [&](const std::string& line) {
      return line.find(quoted(name)) != std::string::npos && line.find("is not known") != std::string::npos;
    };
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(), says), 1) << name;
  }
}

TEST(Skipping, CountsOnBothSidesOfALackOfMemory) {
  for (const int64_t prefetch : {0, 2}) {
    const auto counts = run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
      std::atomic<bool> is_short = true;
      const auto bad = [&](Batch sample) {
        const int64_t number = sample.target.item<int64_t>();
        if (number == 1 || number == 9) throw std::runtime_error("no such colour");
        if (number == 6 && is_short.exchange(false)) throw std::bad_alloc();
        return sample;
      };
      const auto data = strategy.distribute(numbers_in({12}).map(bad),
                                            {.global_batch = 4, .on_error = OnError::kSkip, .prefetch = prefetch});
      auto it = data.epoch(0).begin();
      EXPECT_THROW(++it, Error);
      int64_t samples = 0;
      for (; it != data.epoch(0).end(); ++it) samples += it->begin()->global_size;
      return std::pair{samples, data.skipped()};
    });
    EXPECT_EQ(counts[0], (std::pair<int64_t, int64_t>{10, 2})) << prefetch << " steps ahead";
    EXPECT_EQ(counts[1], counts[0]);
  }
}

}  // namespace
}  // namespace lockstep
