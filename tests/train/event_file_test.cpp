// Event files: their names, when they are written, what a resumed run writes, and what TensorBoard makes of it.
#include "lockstep/train/tensor_board/event_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/tensor_board/histogram.h"
#include "lockstep/train/tensor_board/png_bytes.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::internal {
namespace {

using testing::expect_error;
using testing::FullDisk;
using testing::text_of;

constexpr double kStart = 1700000000.0;

/// A clock that a test sets.
struct Clock {
  double seconds = kStart;
  std::function<double()> reader() {
    return [this] { return seconds; };
  }
};

void add_loss(EventFile& file, int64_t step, double value) {
  file.add(step, [&](SummaryMessage& summary) { summary.scalar("loss", value); });
}

class EventFileTest : public testing::ScratchFolder {
 protected:
  /// The folder's files, sorted by name.
  std::vector<std::string> files(const std::string& run) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(run))) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(EventFileTest, BeginsWithTheVersionAndTheFirstStepAtOnce) {
  Clock clock;
  const EventFile file(path("run"), 6, clock.reader());
  EXPECT_EQ(text_of(file.path()), event_record(file_version_event(kStart)) + event_record(start_event(6, kStart)));
}

TEST_F(EventFileTest, IsNamedByTimeHostAndProcess) {
  Clock clock;
  const EventFile file(path("run"), 0, clock.reader());
  const std::string name = file.path().filename();
  EXPECT_EQ(name.rfind("events.out.tfevents.1700000000.", 0), 0u) << name;
  EXPECT_NE(name.find("." + std::to_string(getpid()) + "."), std::string::npos) << name;
}

TEST_F(EventFileTest, SortsBehindTheFilesThatAreThere) {
  Clock clock;
  write("run/events.out.tfevents.1700000500.other.1.0", "");
  write("run/events.out.tfevents.not-a-number", "");
  for (const char* const expected : {"1700000501", "1700000502"}) {
    const EventFile file(path("run"), 0, clock.reader());
    EXPECT_NE(file.path().filename().string().find(std::string("tfevents.") + expected), std::string::npos);
  }
  clock.seconds = 1700009000;
  const EventFile later(path("run"), 0, clock.reader());
  EXPECT_NE(later.path().filename().string().find("tfevents.1700009000."), std::string::npos);
}

TEST_F(EventFileTest, WritesAfterASecondAndWhenItIsToldTo) {
  Clock clock;
  EventFile file(path("run"), 0, clock.reader());
  const auto size = [&] { return std::filesystem::file_size(file.path()); };
  const auto begun = size();
  add_loss(file, 1, 0.5);
  clock.seconds += 0.9;
  add_loss(file, 2, 0.5);
  EXPECT_EQ(size(), begun);
  clock.seconds += 0.2;
  add_loss(file, 3, 0.5);
  const auto after_a_second = size();
  EXPECT_GT(after_a_second, begun);
  add_loss(file, 4, 0.5);
  EXPECT_EQ(size(), after_a_second);
  file.flush();
  EXPECT_GT(size(), after_a_second);
  // A clock that was set back holds nothing.
  add_loss(file, 5, 0.5);
  clock.seconds -= 1000;
  const auto before = size();
  add_loss(file, 6, 0.5);
  EXPECT_GT(size(), before);
}

TEST_F(EventFileTest, WritesWhatIsLeftAtItsEnd) {
  Clock clock;
  std::filesystem::path name;
  std::uintmax_t begun = 0;
  {
    EventFile file(path("run"), 0, clock.reader());
    name = file.path();
    begun = std::filesystem::file_size(name);
    add_loss(file, 1, 0.5);
    file.add(2, [](SummaryMessage&) {});  // no value, no event
  }
  std::set<std::string> known;
  SummaryMessage summary(known);
  summary.scalar("loss", 0.5);
  EXPECT_EQ(text_of(name).substr(begun), event_record(summary.event(1, kStart)));
}

TEST_F(EventFileTest, NamesAFolderThatCannotBe) {
  write("file", "");
  expect_error<DataError>([&] { EventFile(path("file/run"), 0); }, "LS-FILE", {path("file/run")});
}

TEST_F(EventFileTest, WritesNothingMoreOnceARecordIsTorn) {
  EventFile file(path("run"), 0);
  const auto begun = std::filesystem::file_size(file.path());
  {
    const FullDisk limit(begun + 10);
    add_loss(file, 1, 0.5);
    expect_error<DataError>([&] { file.flush(); }, "LS-FILE", {file.path().string()});
  }
  add_loss(file, 2, 0.5);
  file.flush();
  EXPECT_EQ(std::filesystem::file_size(file.path()), begun + 10);
}

/// Writes runs whose answers tests/train/ask_tensor_board.py knows.
void write_runs(const std::string& folder) {
  Clock clock;
  const std::vector<HistogramBucket> buckets = histogram_of(std::vector<float>{0, 1, 1, 30});
  {
    EventFile file(folder + "/all/train", 0, clock.reader());
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::vector<double> losses{1, 0.5, std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
    for (std::size_t i = 0; i < losses.size(); ++i) {
      file.add(static_cast<int64_t>(i), [&](SummaryMessage& summary) {
        summary.scalar("loss", losses[i]);
        summary.scalar("time/input", 0.25);
        summary.histogram("weights/0.weight", buckets);
      });
    }
    const std::vector<uint8_t> red{255, 0, 0, 255, 0, 0};
    const std::vector<std::string> pngs{png_bytes(red, 2, 1, 3)};
    file.add(4, [&](SummaryMessage& summary) {
      summary.text("findings", "**LS-LOSS-NOT-SCALED** in step 3");
      summary.images("samples", 2, 1, pngs);
    });
  }
  const auto line = [&](const std::string& run, int64_t start, int64_t first, int64_t end, double above) {
    EventFile file(folder + "/" + run, start, clock.reader());
    for (int64_t step = first; step < end; ++step) add_loss(file, step, static_cast<double>(step) + above);
  };
  line("resumed/validation", 0, 1, 11, 0);
  line("resumed/validation", 7, 7, 13, 0.5);
  line("resumed_by_a_clock_behind", 0, 1, 11, 0);
  clock.seconds -= 5000;
  line("resumed_by_a_clock_behind", 7, 7, 13, 0.5);
  clock.seconds += 5000;
  line("torn", 0, 1, 6, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/torn")) {
    std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 7);
  }
  line("torn", 4, 4, 9, 0.5);
}

TEST_F(EventFileTest, TensorBoardShowsThem) {
  const char* const python = std::getenv("LOCKSTEP_TENSORBOARD_PYTHON");
  if (!python) GTEST_SKIP() << "needs TensorBoard; scripts/test-tensorboard installs it and runs this test";
  write_runs(path("runs"));
  const auto result = testing::run_program(python, LOCKSTEP_TRAIN_TESTS "/ask_tensor_board.py '" + path("runs") + "'");
  EXPECT_EQ(result.code, 0) << result.output;
}

}  // namespace
}  // namespace lockstep::internal
