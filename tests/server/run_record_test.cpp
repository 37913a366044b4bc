// The file of a record, byte by byte.
#include "lockstep/server/record/run_record.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/full_disk.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::FullDisk;
using Kind = RecordEvent::Kind;

class RunRecordFile : public lockstep::testing::ScratchFolder {
 protected:
  static std::vector<RecordEvent> some_events() {
    return {{.step = 0, .worker = 2, .pushed = true, .data = 0x123456, .push = 0xabcdef, .states = {0, 0}},
            {.kind = Kind::kChanged, .scheduled = 4, .state = 3},
            {.step = 5, .worker = 1, .function = 7, .pushed = true, .states = {1, 4, 2}},
            {.kind = Kind::kRead, .scheduled = 6, .state = 2},
            {.scheduled = 9, .step = 3, .worker = 1, .function = 7, .outcome = StepOutcome::kFailed, .states = {}},
            {.kind = Kind::kCancelled, .scheduled = 9},
            {.kind = Kind::kRoundCompleted, .scheduled = int64_t{1} << 40},
            {.kind = Kind::kGivenUp, .scheduled = 10, .step = (int64_t{1} << 62) + 1},
            {.step = 1, .outcome = StepOutcome::kTooLate, .is_late = true, .states = {Position{1} << 63, 0}}};
  }
  std::string text_of(const std::string& file) const {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
};

TEST_F(RunRecordFile, HasWhatWasWritten) {
  {
    RecordFile file(path("r"));
    file.begin_run("{\"a\": 1}");
    for (const RecordEvent& one : some_events()) file.add(one);
    file.flush();
    for (const RecordEvent& one : some_events()) file.add(one);
    file.end_run();
    file.begin_run("{}");
  }
  const ReplayRecord record = read_record(path("r"));
  EXPECT_EQ(record.torn, "");
  ASSERT_EQ(record.runs.size(), 2U);
  std::vector<RecordEvent> twice = some_events();
  for (const RecordEvent& one : some_events()) twice.push_back(one);
  EXPECT_EQ(record.runs[0].program, "{\"a\": 1}");
  EXPECT_EQ(record.runs[0].events, twice);
  EXPECT_TRUE(record.runs[0].is_whole);
  EXPECT_TRUE(record.runs[1].events.empty());
  EXPECT_FALSE(record.runs[1].is_whole);
}

TEST_F(RunRecordFile, IsReadUpToItsLastWholeChunk) {
  {
    RecordFile file(path("r"));
    file.begin_run("{}");
    for (int chunk = 0; chunk < 3; ++chunk) {
      for (const RecordEvent& one : some_events()) file.add(one);
      file.flush();
    }
    file.end_run();
  }
  const std::string whole = text_of(path("r"));
  std::size_t before = 0;
  for (std::size_t size = 8 + 4 + 13 + 2; size <= whole.size(); ++size) {
    const ReplayRecord record = read_record(write("torn", whole.substr(0, size)));
    ASSERT_EQ(record.runs.size(), 1U);
    const std::size_t events = record.runs.front().events.size();
    EXPECT_GE(events, before);
    EXPECT_EQ(events % some_events().size(), 0U);
    before = events;
    EXPECT_EQ(record.runs.front().is_whole, size == whole.size());
  }
  EXPECT_EQ(before, 3 * some_events().size());
}

TEST_F(RunRecordFile, EachChangedByteIsFound) {
  {
    RecordFile file(path("r"));
    file.begin_run("{}");
    for (const RecordEvent& one : some_events()) file.add(one);
    file.end_run();
  }
  const std::string whole = text_of(path("r"));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    write("changed", bytes);
    if (at < 8 + 4 + 13 + 2) {
      expect_error<DataError>([&] { read_record(path("changed")); }, "LS-RUN-RECORD", {"'" + path("changed") + "'"});
    } else {
      const ReplayRecord record = read_record(path("changed"));
      EXPECT_NE(record.torn, "");
      EXPECT_FALSE(record.runs.front().is_whole);
    }
  }
}

TEST_F(RunRecordFile, ReplacesARecordAndNoOtherThing) {
  for (const bool is_there : {false, true}) {
    RecordFile file(path("r"));
    EXPECT_EQ(file.replaces(), is_there);
    file.begin_run(is_there ? "{}" : std::string(1000, 'x'));
  }
  EXPECT_EQ(read_record(path("r")).runs.at(0).program, "{}");
  EXPECT_LT(std::filesystem::file_size(path("r")), 100U);
  expect_error<DataError>([] { RecordFile("/dev/null"); }, "LS-FILE", {"'/dev/null'"});
  expect_error<DataError>([&] { RecordFile(path("no/r")); }, "LS-FILE", {quoted("no/r")});
  expect_error<DataError>([&] { read_record(path("absent")); }, "LS-FILE", {quoted("absent")});
}

TEST_F(RunRecordFile, IsNoPipeAndNoDeviceWhichMayHaveNoEnd) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& other : {path("pipe"), path("."), std::string("/dev/zero"), std::string("/dev/null")}) {
    expect_error<DataError>([&] { read_record(other); }, "LS-FILE", {"'" + other + "'", "no plain file"});
    expect_error<DataError>([&] { RecordFile file(other); }, "LS-FILE", {"'" + other + "'"});
  }
}

TEST_F(RunRecordFile, OfAForeignKindIsRefused) {
  const std::string magic = "LSRECORD";
  for (const std::string& bytes :
       {std::string(), std::string("LSRECOR"), magic, magic + std::string(3, '\1'), magic + std::string("\1\0\0\0", 4),
        magic + std::string("\2\0\0\0R", 5), std::string("\x7f") + "ELF" + std::string(5000, 'x')}) {
    expect_error<DataError>([&] { read_record(write("foreign", bytes)); }, "LS-RUN-RECORD", {quoted("foreign")});
  }
}

TEST_F(RunRecordFile, HasAStepOfManyPulls) {
  RecordEvent event{.step = 3, .pushed = true, .states = std::vector<Position>(100'000, 2)};
  {
    RecordFile file(path("r"));
    file.begin_run("{}");
    file.add(event);
    std::ranges::fill(event.states, 9);
    event.states.back() = 7;
    file.add(event);
    file.end_run();
  }
  const ReplayRecord record = read_record(path("r"));
  EXPECT_EQ(record.torn, "");
  ASSERT_EQ(record.runs.front().events.size(), 2U);
  EXPECT_EQ(record.runs.front().events.back(), event);
}

TEST_F(RunRecordFile, IsWrittenByOneAtATime) {
  std::optional<RecordFile> first(std::in_place, path("r"));
  first->begin_run("{}");
  expect_error<DataError>([&] { RecordFile second(path("r")); }, "LS-FILE", {quoted("r"), "another run"});
  EXPECT_EQ(read_record(path("r")).runs.size(), 1U) << "the second one has not emptied it";
  first.reset();
  RecordFile second(path("r"));
}

TEST_F(RunRecordFile, AFullDiskIsAnErrorAndStaysOne) {
  RecordFile record(path("r"));
  {
    const FullDisk full(40);
    expect_error<DataError>([&] { record.begin_run(std::string(100, 'x')); }, "LS-FILE", {quoted("r")});
  }
  expect_error<DataError>([&] { record.begin_run("{}"); }, "LS-FILE", {quoted("r")});
}

TEST_F(RunRecordFile, WhatIsNoRecordIsNotReplaced) {
  for (const char* text : {"x", "a, b, c\n1, 2, 3\n4, 5, 6\n"}) {
    std::ofstream(path("data.csv")) << text;
    expect_error<DataError>([&] { RecordFile one(path("data.csv")); }, "LS-FILE", {quoted("data.csv"), "stays"});
    EXPECT_EQ(text_of(path("data.csv")), text);
  }
}

}  // namespace
}  // namespace lockstep::internal
