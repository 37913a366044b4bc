// `lockstep replay`, as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/server/record/run_record.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace {

using lockstep::testing::Result;
using lockstep::testing::run;
using lockstep::testing::run_program;

bool has(const Result& result, const std::string& part) { return result.output.find(part) != std::string::npos; }

class ReplayCommand : public lockstep::testing::ScratchFolder {
 protected:
  /// The line of its output that has the digest.
  static std::string digest_in(const Result& result) {
    const std::size_t at = result.output.find("seen ");
    return at == std::string::npos ? result.output : result.output.substr(at, result.output.find('\n', at) - at);
  }
  std::string program(int steps, int seed = 7) const {
    return std::string(LOCKSTEP_RECORDED_PROGRAM) + " " + path("run.rec") + " " + std::to_string(steps) + " " +
           std::to_string(seed);
  }
};

TEST_F(ReplayCommand, RepeatsARunBitForBit) {
  for (int time = 0; time < 3; ++time) {
    const Result original = run_program(program(60));
    ASSERT_EQ(original.code, 0) << original.output;
    const std::string before = lockstep::testing::text_of(path("run.rec"));
    for (int again = 0; again < 2; ++again) {
      const Result repeated = run("replay " + path("run.rec") + " -- " + program(60));
      EXPECT_EQ(repeated.code, 0) << repeated.output;
      EXPECT_EQ(digest_in(repeated), digest_in(original));
    }
    EXPECT_EQ(lockstep::testing::text_of(path("run.rec")), before) << "a replay does not write the record";
  }
}

TEST_F(ReplayCommand, CountsAStepOnceThatTwoWorkersHaveRun) {
  using Event = lockstep::internal::RecordEvent;
  {
    lockstep::internal::RecordFile record(path("late.rec"));
    record.begin_run(R"({"steps": ["train"], "staleness": null, "workers": 2})");
    record.add(Event{.step = 0, .worker = 1, .pushed = true, .states = {0}});
    record.add(Event{.step = 0, .worker = 0, .pushed = true, .is_late = true, .states = {0}});
    record.add(Event{.step = 1, .worker = 0, .pushed = true, .states = {1}});
    record.end_run();
  }
  const Result listed = run("replay " + path("late.rec") + " --list --json");
  ASSERT_EQ(listed.code, 0) << listed.output;
  const auto shown = nlohmann::json::parse(listed.output).at("runs").at(0);
  EXPECT_EQ(shown.at("steps_done"), 2);
  EXPECT_EQ(shown.at("list").at(1).at("what"), "late");
  EXPECT_EQ(shown.at("list").at(2).at("missed"), 0);
}

TEST_F(ReplayCommand, StopsAtAStepAndRepeatsThat) {
  ASSERT_EQ(run_program(program(40)).code, 0);
  const Result first = run("replay " + path("run.rec") + " --until 20 -- " + program(40));
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_TRUE(has(first, "replay: stopped after step 20")) << first.output;
  EXPECT_FALSE(has(first, "seen 40")) << first.output;
  EXPECT_EQ(digest_in(run("replay " + path("run.rec") + " --until 20 -- " + program(40))), digest_in(first));
  const Result beyond = run("replay " + path("run.rec") + " --until 40 -- " + program(40));
  EXPECT_EQ(beyond.code, 2) << beyond.output;
  EXPECT_TRUE(has(beyond, "39")) << beyond.output;
}

TEST_F(ReplayCommand, SaysWhatDiffersAndWhere) {
  ASSERT_EQ(run_program(program(30)).code, 0);
  const Result seed = run("replay " + path("run.rec") + " -- " + program(30, 8));
  EXPECT_EQ(seed.code, 1);
  EXPECT_TRUE(has(seed, "LS-REPLAY-DIFFERS") && has(seed, "the seed: 7 in the record, and 8 here")) << seed.output;
  const Result fewer = run("replay " + path("run.rec") + " -- " + program(20));
  EXPECT_EQ(fewer.code, 1);
  EXPECT_TRUE(has(fewer, "LS-REPLAY-DEPARTS")) << fewer.output;
}

TEST_F(ReplayCommand, ShowsWhatARecordHas) {
  ASSERT_EQ(run_program(program(25)).code, 0);
  const Result shown = run("replay " + path("run.rec") + " --list --json");
  ASSERT_EQ(shown.code, 0) << shown.output;
  const auto json = nlohmann::json::parse(shown.output);
  const auto& one = json.at("runs").at(0);
  EXPECT_EQ(one.at("workers"), 3);
  EXPECT_EQ(one.at("seed"), 7);
  EXPECT_EQ(one.at("steps_done"), 25);
  EXPECT_EQ(one.at("whole"), true);
  const auto& list = one.at("list");
  EXPECT_EQ(std::ranges::count_if(list, [](const auto& line) { return line.at("what") == "pushed"; }), 25);
  const Result text = run("replay " + path("run.rec") + " --list");
  EXPECT_TRUE(has(text, "train") && has(text, "missed")) << text.output;
}

TEST_F(ReplayCommand, SaysWhereARecordIsTorn) {
  ASSERT_EQ(run_program(program(25)).code, 0);
  std::filesystem::resize_file(path("run.rec"), std::filesystem::file_size(path("run.rec")) - 20);
  const Result shown = run("replay " + path("run.rec"));
  EXPECT_EQ(shown.code, 1);
  EXPECT_TRUE(has(shown, "is torn")) << shown.output;
  const Result repeated = run("replay " + path("run.rec") + " -- " + program(25));
  EXPECT_EQ(repeated.code, 0) << repeated.output;
  EXPECT_TRUE(has(repeated, "the record ends here")) << repeated.output;
}

TEST_F(ReplayCommand, RefusesWhatIsNoRecordAndWhatCannotBeStarted) {
  const Result absent = run("replay " + path("absent") + " -- true");
  EXPECT_EQ(absent.code, 3);
  EXPECT_TRUE(has(absent, "LS-FILE")) << absent.output;
  const Result other = run("replay " + write("other", "no record") + " -- true");
  EXPECT_EQ(other.code, 3);
  EXPECT_TRUE(has(other, "LS-RUN-RECORD")) << other.output;
  ASSERT_EQ(run_program(program(3)).code, 0);
  EXPECT_EQ(run("replay " + path("run.rec") + " -- " + path("no-program")).code, 2);
  EXPECT_EQ(run("replay -- true").code, 2);
  for (const std::string flags : {" --until 1", " --list -- true", " --json -- true", " true"}) {
    const Result odd = run("replay " + path("run.rec") + flags);
    EXPECT_EQ(odd.code, 2) << flags << ": " << odd.output;
  }
}

TEST_F(ReplayCommand, RefusesAPipeAndADeviceAtOnce) {
  ASSERT_EQ(run_program("mkfifo " + path("pipe")).code, 0);
  for (const std::string& other : {path("pipe"), std::string("/dev/zero"), path(".")}) {
    for (const std::string rest : {"", " -- true"}) {
      const Result result = run("replay " + other + rest);
      EXPECT_EQ(result.code, 3) << result.output;
      EXPECT_TRUE(has(result, "LS-FILE")) << result.output;
    }
  }
}

TEST_F(ReplayCommand, IsRefusedByTasksThatAreProcesses) {
  ASSERT_EQ(run_program(program(3)).code, 0);
  const std::string cluster = R"(TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], )"
                              R"("ps": ["127.0.0.1:3"]}, "task": {"type": "worker", "index": 0}}')";
  const Result result = run("replay " + path("run.rec") + " -- env " + cluster + " " + program(3));
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_TRUE(has(result, "LS-REPLAY-DIFFERS") && has(result, "'worker'")) << result.output;
}

}  // namespace
