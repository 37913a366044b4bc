// `lockstep train --trace` and `lockstep trace`, as a user runs them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/run_program.h"
#include "tests/support/trace_rules.h"

namespace {

namespace fs = std::filesystem;
using lockstep::testing::Result;
using lockstep::testing::run;
using lockstep::testing::text_of;

class TraceCommand : public ::testing::Test {
 protected:
  TraceCommand() : folder_(fs::temp_directory_path() / ("lockstep-trace-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~TraceCommand() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  const fs::path folder_;
};

bool has(const Result& result, const std::string& part) { return result.output.find(part) != std::string::npos; }

TEST_F(TraceCommand, ShowsTheStepsOfOneProcess) {
  const Result trained = run("train --steps 9 --replicas 4 --devices cpu:0,cpu:1 --trace " + path("t.json"));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const Result shown = run("trace " + path("t.json"));
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_TRUE(has(shown, "9 steps")) << "there are too few for leaving the first ones out: " << shown.output;
  EXPECT_TRUE(has(shown, "worker 0, lane 1 (cpu:1)")) << shown.output;
  const auto json = nlohmann::json::parse(run("trace --json " + path("t.json")).output);
  EXPECT_EQ(json.at("steps"), 9);
  EXPECT_EQ(json.at("lanes").size(), 2);
  EXPECT_EQ(json["lanes"][1].at("lane"), "lane 1 (cpu:1)");
  EXPECT_GT(json["lanes"][1].at("parts").size(), 0);
}

TEST_F(TraceCommand, ShowsAllWorkersOfAJobInOneFile) {
  const Result trained = run("run -n 2 -- " LOCKSTEP_PROGRAM
                             " train --strategy multi-worker --steps 30 --replicas 4 --devices cpu:0 --trace " +
                             path("t.json"));
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(lockstep::testing::TraceRules::broken_in(text_of(path("t.json"))), std::vector<std::string>());
  const auto document = nlohmann::json::parse(text_of(path("t.json")));
  std::set<int> workers;
  std::set<int64_t> steps;
  for (const auto& event : document["traceEvents"]) {
    if (event["ph"] != "X") continue;
    workers.insert(event["pid"].get<int>());
    if (event["cat"] == "step") steps.insert(event["args"]["step"].get<int64_t>());
  }
  EXPECT_EQ(workers, (std::set<int>{0, 1}));
  EXPECT_EQ(steps.size(), 20);
  EXPECT_EQ(*steps.begin(), 3) << "the first steps take memory and choose forms";
  EXPECT_TRUE(has(run("trace " + path("t.json")), "worker 1, lane 0")) << trained.output;
}

TEST_F(TraceCommand, RefusesWhatIsNoTrace) {
  for (const std::string& file : {std::string("/etc/passwd"), path("none.json")}) {
    const Result shown = run("trace " + file);
    EXPECT_EQ(shown.code, 3) << shown.output;
    EXPECT_TRUE(has(shown, file)) << shown.output;
  }
}

}  // namespace
