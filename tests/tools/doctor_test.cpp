// The program `lockstep doctor`, as a user runs it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::testing {
namespace {

class Doctor : public ScratchFolder {
 protected:
  static bool has(const Result& result, const std::string& piece) {
    return result.output.find(piece) != std::string::npos;
  }
  static std::string program() { return LOCKSTEP_PROGRAM; }
};

TEST_F(Doctor, FindsNothingInAProgramThatIsRight) {
  const Result result =
      run("doctor --json " + path("found.json") + " -- " + program() + " train --model mlp --steps 3 --replicas 2");
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_TRUE(has(result, "0 findings")) << result.output;
  EXPECT_TRUE(has(result, "2 replicas; replicas were compared after every step")) << result.output;
  const auto json = nlohmann::json::parse(std::ifstream(path("found.json")));
  EXPECT_EQ(json.at("findings"), nlohmann::json::array());
  EXPECT_EQ(json.at("exit_code"), 0);
}

TEST_F(Doctor, ShowsEachFindingOnceWithItsPlaceInTheDocumentation) {
  const Result result = run("doctor --json " + path("found.json") + " -- " + program() + " run -n 2 -- " + program() +
                            " train --model mlp --steps 3 --replicas 2 --strategy multi-worker --learning-rate 1e30");
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_TRUE(has(result, "docs/errors.md#ls-not-finite, noticed by 1 of 2 processes")) << result.output;
  const auto json = nlohmann::json::parse(std::ifstream(path("found.json")));
  EXPECT_EQ(json.at("processes"), 2);
  EXPECT_EQ(json.at("findings").at(0).at("code"), "LS-NOT-FINITE");
}

TEST_F(Doctor, CountsAProgramThatFailsAsAFinding) {
  const Result killed = run("doctor -- sh -c 'kill -9 $$'");
  EXPECT_EQ(killed.code, 1) << killed.output;
  EXPECT_TRUE(has(killed, "ended by signal 9")) << killed.output;
  EXPECT_TRUE(has(killed, "no strategy")) << killed.output;
  EXPECT_TRUE(has(run("doctor -- false"), "exit code 1"));
}

TEST_F(Doctor, SaysWhereAProgramHasNothingToLookAt) {
  const Result result = run("doctor -- true");
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_TRUE(has(result, "no strategy")) << result.output;
}

TEST_F(Doctor, ReadsTheReportOfARun) {
  write("clean.json", R"({"findings": []})");
  write("found.json", R"({"findings": ["LS-NOT-FINITE: step 3: a loss is infinite"]})");
  EXPECT_EQ(run("doctor " + path("clean.json")).code, 0);
  const Result found = run("doctor " + path("found.json"));
  EXPECT_EQ(found.code, 1) << found.output;
  EXPECT_TRUE(has(found, "1 finding in")) << found.output;
  EXPECT_TRUE(has(found, "step 3: a loss is infinite\n  docs/errors.md#ls-not-finite")) << found.output;
}

TEST_F(Doctor, RefusesWhatIsNeitherAReportNorAProgram) {
  EXPECT_EQ(run("doctor").code, 2);
  EXPECT_EQ(run("doctor " + path("clean.json") + " -- true").code, 2);
  EXPECT_EQ(run("doctor -- " + path("nothing")).code, 2);
  EXPECT_EQ(run("doctor " + path("nothing")).code, 3);
  write("other.json", "{}");
  const Result other = run("doctor " + path("other.json"));
  EXPECT_EQ(other.code, 3);
  EXPECT_TRUE(has(other, "without a list of findings")) << other.output;
}

}  // namespace
}  // namespace lockstep::testing
