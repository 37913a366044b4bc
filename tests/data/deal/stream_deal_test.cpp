// How streams are dealt: by files and by records, on several workers, stopped and continued.
#include "lockstep/data/deal/deal.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>

#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"
#include "tests/support/programs.h"
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
using testing::up_to;
using testing::WorkersCase;

TEST(Streams, AreDealtInBlocksWhateverTheWorkers) {
  for (const Sharding sharding : {Sharding::kAuto, Sharding::kData, Sharding::kFile}) {
    for (const bool shuffle : {false, true}) {
      for (const Remainder remainder : {Remainder::kKeep, Remainder::kDrop, Remainder::kPad}) {
        const DistributeOptions options{.global_batch = 5,
                                        .shuffle = shuffle,
                                        .seed = 2,
                                        .remainder = remainder,
                                        .sharding = sharding,
                                        .prefetch = 2};
        const auto on = [&](int64_t workers) {
          return joined(run_workers(WorkersCase{workers, 4}, [&](Strategy& strategy) {
            return steps_of(strategy.distribute(numbers_in({6, 2, 9, 3, 3}), options), 1);
          }));
        };
        const Steps one = on(1);
        EXPECT_EQ(on(2), one);
        EXPECT_EQ(on(4), one);
        Numbers all = sorted(one);
        if (remainder == Remainder::kPad) std::erase(all, -100);
        if (remainder != Remainder::kDrop) {
          EXPECT_EQ(all, up_to(23));
        }
        if (sharding == Sharding::kData) {
          EXPECT_EQ(one.size(), remainder == Remainder::kDrop ? 4u : 5u);
        }
      }
    }
  }
}

TEST(Streams, OpenOnlyTheFilesOfTheirReplicas) {
  const auto opened = run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
    const auto files = testing::files_of({2, 2, 2, 2});
    steps_of(strategy.distribute(data::from_records(files, testing::parse_number), {.global_batch = 2}), 0);
    return files->opened.load();
  });
  EXPECT_EQ(opened, (std::vector<int64_t>{2, 2}));
}

TEST(Streams, DropLeavesOutOnlyPartsThatAreNotFullHoweverUnevenTheFilesAre) {
  for (const int64_t workers : {1, 2}) {
    const Steps steps = joined(run_workers(WorkersCase{workers, 2}, [&](Strategy& strategy) {
      return steps_of(
          strategy.distribute(numbers_in({101, 3}),
                              {.global_batch = 4, .remainder = Remainder::kDrop, .sharding = Sharding::kFile}),
          0);
    }));
    ASSERT_EQ(steps.size(), 50u) << workers << " workers";
    Numbers expected = up_to(100);  // the last of the first file stands alone
    expected.insert(expected.end(), {101, 102});
    EXPECT_EQ(sorted(steps), expected);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      EXPECT_EQ(steps[step][0].size(), 2u);
      EXPECT_EQ(steps[step][1].size(), step == 0 ? 2u : 0u);
    }
  }
}

TEST(Streams, OfADataSetSkipItsBadSamples) {
  const auto bad = [](Batch sample) {
    if (sample.target.item<int64_t>() % 5 == 3) throw std::runtime_error("no such colour");
    return sample;
  };
  const DistributeOptions skip{.global_batch = 4, .on_error = OnError::kSkip};
  for (const int64_t workers : {1, 2}) {
    const auto all = run_workers(WorkersCase{workers, 2}, [&](Strategy& strategy) {
      const auto data = strategy.distribute(data::from_dataset(numbers(12).map(bad)), skip);
      const Steps steps = steps_of(data, 0);
      EXPECT_EQ(data.skipped(), 2);
      return steps;
    });
    EXPECT_EQ(sorted(joined(all)), (Numbers{0, 1, 2, 4, 5, 6, 7, 9, 10, 11})) << workers << " workers";
  }
}

TEST(Streams, NameTheRecordOnWhichAFunctionFails) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const auto fails_on_7 = [](const Batch& sample) {
    if (sample.target.item<int64_t>() == 7) throw std::runtime_error("no such colour");
  };
  const auto map = [&](Batch sample) {
    fails_on_7(sample);
    return sample;
  };
  const auto filter = [&](const Batch& sample) {
    fails_on_7(sample);
    return true;
  };
  for (const Stream& stream : {numbers_in({3, 9}).map(map), numbers_in({3, 9}).repeat(1).filter(filter)}) {
    expect_error<DataError>([&] { steps_of(strategy.distribute(stream, {.global_batch = 12}), 0); }, "LS-MAP",
                            {"record 4 of 'file1'", "no such colour"});
  }
}

TEST(Streams, ContinueAtTheVeryNextSampleOnOtherWorkers) {
  for (const Sharding sharding : {Sharding::kData, Sharding::kFile}) {
    const DistributeOptions options{.global_batch = 6, .shuffle = true, .seed = 3, .sharding = sharding, .prefetch = 1};
    const auto stream = [] { return numbers_in({7, 3, 8, 5}, {.cycle_length = 2}).shuffle(4).batch(2); };
    const auto rest = [&](int64_t workers, const data::Cursor& from) {
      return joined(run_workers(WorkersCase{workers, 3}, [&](Strategy& strategy) {
        const auto data = strategy.distribute(stream(), options);
        data.seek(data::cursor_from_json(data::to_json(from)));
        EXPECT_EQ(data.cursor(), from);
        Steps steps = steps_of(data, 1);
        for (auto& step : steps_of(data, 2)) steps.push_back(std::move(step));
        return steps;
      }));
    };
    std::vector<data::Cursor> cursors;
    Steps whole;
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 3, .seed = 3});
    const auto data = strategy.distribute(stream(), options);
    for (const int64_t epoch : {1, 2}) {
      for (const auto& batch : data.epoch(epoch)) {
        auto& step = whole.emplace_back();
        for (const Batch& part : batch) step.push_back(targets_of(part));
        cursors.push_back(data.cursor());
      }
    }
    for (std::size_t stop = 0; stop < cursors.size(); ++stop) {
      const Steps expected(whole.begin() + static_cast<std::ptrdiff_t>(stop) + 1, whole.end());
      EXPECT_EQ(rest(1 + static_cast<int64_t>(stop % 3), cursors[stop]), expected) << "stopped after step " << stop;
    }
  }
}

TEST(Streams, OffGivesEachWorkerAll) {
  const auto all = run_workers(WorkersCase{2, 3}, [](Strategy& strategy) {
    return std::pair{
        steps_of(strategy.distribute(numbers_in({5, 4}), {.global_batch = 3, .sharding = Sharding::kOff}), 0),
        steps_of(strategy.distribute(numbers(7), {.global_batch = 3, .sharding = Sharding::kOff}), 0)};
  });
  EXPECT_EQ(sorted(all[0].first), up_to(9));
  EXPECT_EQ(sorted(all[1].first), up_to(9));
  EXPECT_EQ(all[0].first.size(), 9u) << "the slower one reads one sample a step";
  EXPECT_EQ(all[1].first.size(), 9u);
  EXPECT_EQ(sorted(all[0].second), up_to(7));
  EXPECT_EQ(sorted(all[1].second), up_to(7));
}

TEST(Streams, ThatDifferBetweenWorkersAreFound) {
  testing::expect_error_on_all<DivergenceError>(WorkersCase{2, 2},
                                                [](Strategy& strategy) {
                                                  const int64_t more = strategy.worker_index();
                                                  steps_of(
                                                      strategy.distribute(numbers_in({5}).map([more](Batch sample) {
                                                        sample.input = sample.input + static_cast<double>(more);
                                                        return sample;
                                                      }),
                                                                          {.global_batch = 2}),
                                                      0);
                                                },
                                                "LS-STREAM-DIFFERS", {"worker 1", "worker 0"});
}

TEST(Streams, FailOnAllWorkersTogether) {
  const auto said = run_workers(WorkersCase{2, 2}, [](Strategy& strategy) {
    const int64_t worker = strategy.worker_index();
    const auto data = strategy.distribute(numbers_in({5, 5}).map([worker](Batch sample) {
      if (worker == 1 && sample.target.item<int64_t>() == 8) throw std::runtime_error("no such colour");
      return sample;
    }),
                                          {.global_batch = 2, .sharding = Sharding::kFile});
    std::string code;
    try {
      steps_of(data, 0);
    } catch (const Error& error) {
      code = error.code();
      EXPECT_NE(std::string(error.what()).find("no such colour"), std::string::npos) << error.what();
    }
    return code + " " + std::to_string(data.cursor().position);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"LS-PEER-FAILED 6", "LS-MAP 6"}));
}

TEST(Streams, WithFewerFilesThanReplicasAreReadByAllAndTheLogSaysSo) {
  struct Case {
    int64_t workers;
    int64_t replicas;
    std::vector<int64_t> files;
    std::string parts;
  };
  for (const Case& one :
       std::vector<Case>{{1, 4, {5, 6}, "2 parts"}, {2, 4, {5, 3, 3}, "3 parts"}, {2, 2, {11}, "1 part"}}) {
    for (const Sharding sharding : {Sharding::kFile, Sharding::kAuto}) {
      const testing::Warnings said;
      const auto all = run_workers({one.workers, one.replicas}, [&](Strategy& strategy) {
        const auto files = testing::files_of(one.files);
        const Stream stream = data::from_records(files, testing::parse_number);
        const Steps steps = steps_of(strategy.distribute(stream, {.global_batch = 4, .sharding = sharding}), 0);
        EXPECT_EQ(files->read, 11) << "each worker reads all";
        return steps;
      });
      EXPECT_EQ(sorted(joined(all)), up_to(11));
      if (sharding == Sharding::kAuto) {
        EXPECT_TRUE(said.texts.empty()) << said.texts.front();
        continue;
      }
      ASSERT_EQ(said.texts.size(), static_cast<std::size_t>(one.workers));
      for (const std::string_view value : {std::string_view(one.parts), std::string_view("Sharding::kData")})
        EXPECT_TRUE(testing::has_value(said.texts.front(), value)) << said.texts.front();
    }
  }
}

TEST(Streams, AreReadByAllWhereABatchHasNoSampleForAReplica) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  const auto data = strategy.distribute(numbers_in({2, 2, 2}), {.global_batch = 2, .sharding = Sharding::kFile});
  EXPECT_EQ(sorted(steps_of(data, 0)), up_to(6));
  expect_error<UsageError>(
      [&] { strategy.distribute_from_function([](const InputContext&) { return numbers(4); }, {.global_batch = 2}); },
      "LS-OPTION", {"batch of 2", "3 replicas"});
}

TEST(Streams, SayHowManyElementsTheirStagesKeep) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto same = [](Batch sample) { return sample; };
  const auto says = [&](const Stream& stream, const DistributeOptions& options, std::string_view value) {
    const std::string text = strategy.distribute(stream, options).describe();
    EXPECT_TRUE(testing::has_value(text, value)) << text;
  };
  const Stream mapped = numbers_in({9, 9}).map(same, {.threads = 3});  // twelve at once, one of which it gives
  says(mapped.shuffle(8), {.global_batch = 2, .sharding = Sharding::kData, .prefetch = 1}, "19 elements");
  says(mapped.shuffle(8), {.global_batch = 2, .sharding = Sharding::kFile}, "38 elements");
  says(mapped, {.global_batch = 2, .shuffle = true, .sharding = Sharding::kData}, "1035 elements");
  const Stream windows = numbers_in({9}).shuffle(8);
  const Stream turns = data::interleave({windows, numbers_in({9}), numbers_in({9}).shuffle(5)}, {.cycle_length = 2});
  says(turns.zip(windows), {.global_batch = 2, .sharding = Sharding::kData}, "21 elements");
  const std::string plain = strategy.distribute(numbers_in({9}), {.global_batch = 2}).describe();
  EXPECT_FALSE(testing::has_value(plain, "its stages keep")) << plain;
}

TEST(Streams, HaveNoLength) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers_in({3}), {.global_batch = 2});
  expect_error<UsageError>([&] { data.size(); }, "LS-STREAM", {"size()"});
  expect_error<UsageError>([&] { data.steps_per_epoch(); }, "LS-STREAM");
  expect_error<UsageError>([&] { strategy.distribute(numbers_in({3}), {}); }, "LS-OPTION", {".global_batch"});
  expect_error<UsageError>([&] { strategy.distribute(Stream(), {.global_batch = 1}); }, "LS-EMPTY-HANDLE");
  EXPECT_EQ(steps_of(strategy.distribute(numbers_in({0}), {.global_batch = 2}), 0).size(), 0u);
}

TEST(Streams, RefuseACursorOfAnotherShardingOrOfOtherReplicas) {
  MirroredStrategy two({.devices = lanes(1), .replicas = 2, .seed = 3});
  MirroredStrategy four({.devices = lanes(1), .replicas = 4, .seed = 3});
  const auto data = two.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2});
  const auto it = data.epoch(0).begin();
  const auto other = four.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2});
  expect_error<UsageError>([&] { other.seek(data.cursor()); }, "LS-STATE-MISFIT", {"2 readers"});
  const auto whole = two.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2, .sharding = Sharding::kData});
  expect_error<UsageError>([&] { whole.seek(data.cursor()); }, "LS-STATE-MISFIT", {"2 readers"});
  expect_error<DataError>(
      [&] {
        two.distribute(numbers_in({5, 5, 5}), {.global_batch = 2}).seek(data.cursor());
      },
      "LS-DATA-CHANGED", {"4 files"});
}

}  // namespace
}  // namespace lockstep
