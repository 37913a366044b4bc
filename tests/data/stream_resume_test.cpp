// How many records are read again where a stream that is shuffled in windows continues.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/data/records_in_memory.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

constexpr int64_t kRecords = 20;

/// A stream of 20 records, which are counted as they are read.
struct Counted {
  std::shared_ptr<testing::RecordsInMemory> files = testing::files_of({13, 0, 7});
  Stream stream = {};
  int64_t open_files = 1;  // at most, at a time

  /// Each file that is open reads the record that it gave last once more: its place is the one that is known.
  int64_t most(int64_t window) const { return window - 1 + open_files; }
};

/// Shuffled in windows: as it is; from files in turn; with threads before the shuffle, and behind it.
std::vector<Counted> shuffled(int64_t window) {
  const auto same = [](Batch sample) { return sample; };
  std::vector<Counted> all(4);
  all[1].open_files = 3;
  for (Counted& one : all) {
    one.stream = data::from_records(one.files, testing::parse_number, {.cycle_length = one.open_files});
  }
  all[2].stream = all[2].stream.map(same, {.threads = 3});
  for (Counted& one : all) one.stream = one.stream.shuffle(window, 3);
  all[3].stream = all[3].stream.map(same, {.threads = 3});
  return all;
}

TEST(Shuffle, OfAStreamReadsAtMostOneWindowAgainWhereItContinues) {
  for (const int64_t window : {1, 4, 7, 20, 64}) {
    for (const Counted& one : shuffled(window)) {
      for (int64_t stop = 0; stop <= kRecords; ++stop) {
        const auto reader = one.stream.open();
        Batch element;
        for (int64_t i = 0; i < stop; ++i) ASSERT_TRUE(reader->next(element));
        one.files->read = 0;
        const auto again = one.stream.source()->open({}, reader->position());
        int64_t given = 0;
        while (again->next(element)) ++given;
        EXPECT_EQ(given, kRecords - stop);
        const int64_t read_again = one.files->read - given;
        const int64_t begun = stop == kRecords ? 0 : stop % window;  // what the present window has given
        EXPECT_GE(read_again, begun) << one.stream.source()->describe() << " after " << stop;
        EXPECT_LE(read_again, begun + one.open_files) << one.stream.source()->describe() << " after " << stop;
        EXPECT_LE(read_again, one.most(window));
      }
    }
  }
}

TEST(Shuffle, OfADistributedStreamReadsAtMostOneWindowAgainWhereItContinues) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2});
  for (const int64_t prefetch : {0, 3}) {
    const DistributeOptions options{.global_batch = 3, .sharding = Sharding::kData, .prefetch = prefetch, .threads = 2};
    for (const int64_t window : {4, 8}) {
      for (const Counted& one : shuffled(window)) {
        for (int64_t stop = 1; stop < 6; ++stop) {
          const DistributedDataset before = strategy.distribute(one.stream, options);
          int64_t steps = 0;
          for (const auto& step : before.epoch(0)) {
            EXPECT_EQ(step.size(), 2);
            if (++steps == stop) break;
          }
          one.files->read = 0;
          const DistributedDataset after = strategy.distribute(one.stream, options);
          after.seek(before.cursor());
          int64_t given = 0;
          for (const auto& step : after.epoch(0)) given += step[0].size() + step[1].size();
          EXPECT_EQ(given, kRecords - 3 * stop);
          EXPECT_LE(one.files->read - given, one.most(window)) << one.stream.source()->describe() << " after " << stop;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
