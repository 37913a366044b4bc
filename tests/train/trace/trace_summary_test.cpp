// What is said of a trace.
#include "lockstep/train/trace/trace_summary.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::internal {
namespace {

NamedSlice on(int64_t worker, int lane, const char* kind, const char* name, double begin, double time) {
  return {worker, "lane " + std::to_string(lane), kind, name, begin, time};
}

/// Two steps of a millisecond, in which lane 1 waits for lane 0 for a quarter of the time.
std::vector<NamedSlice> with_a_slow_lane() {
  std::vector<NamedSlice> slices;
  for (const double at : {0.0, 1000.0}) {
    slices.push_back(on(0, 0, "step", "step", at, 1000));
    slices.push_back(on(0, 0, "compute", "forward", at, 900));
    slices.push_back(on(0, 1, "compute", "forward", at, 650));
    slices.push_back(on(0, 1, "wait", "wait for lanes", at + 650, 250));
    slices.push_back(on(0, 0, "meeting", "update", at + 900, 100));
    slices.push_back(on(0, 1, "meeting", "update", at + 900, 100));
  }
  return slices;
}

bool says(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

TEST(TraceSummary, AddsUpEachLane) {
  const TraceSummary summary = summary_of(with_a_slow_lane());
  EXPECT_EQ(summary.steps, 2);
  EXPECT_EQ(summary.microseconds, 1000);
  ASSERT_EQ(summary.lanes.size(), 2);
  EXPECT_EQ(summary.lanes[0].of("compute"), 1800);
  EXPECT_EQ(summary.lanes[0].of("wait"), 0);
  EXPECT_EQ(summary.lanes[1].of("wait"), 500);
  EXPECT_EQ(summary.lanes[1].of("meeting"), 200);
}

TEST(TraceSummary, NamesTheLaneThatOthersWaitFor) {
  const std::string text = text_of(summary_of(with_a_slow_lane()));
  EXPECT_TRUE(says(text, "Lanes waited for each other for 12 % of the time; lane 0 of worker 0 waited least")) << text;
  EXPECT_FALSE(says(text, "samples for")) << text;
}

TEST(TraceSummary, NamesTheWorkerThatOthersWaitFor) {
  std::vector<NamedSlice> slices;
  for (const int64_t worker : {0, 1, 2}) {
    slices.push_back(on(worker, 0, "step", "step", 0, 1000));
    slices.push_back(on(worker, 0, "wait", "wait for workers", 0, worker == 1 ? 10 : 300));
  }
  EXPECT_TRUE(says(text_of(summary_of(slices)), "worker 1 waited least"));
}

TEST(TraceSummary, SaysWhereTheLoopWaitsForSamples) {
  std::vector<NamedSlice> slices = with_a_slow_lane();
  slices.push_back(on(0, 0, "wait", "wait for input", 1000, 400));
  EXPECT_TRUE(says(text_of(summary_of(slices)), "waited for samples for 20 % of the time"));
}

TEST(TraceSummary, IsContentWhereNothingWaits) {
  const std::vector<NamedSlice> slices{on(0, 0, "step", "step", 0, 1000), on(0, 0, "compute", "forward", 0, 990)};
  EXPECT_TRUE(says(text_of(summary_of(slices)), "No lane waited"));
}

TEST(TraceSummary, OfNoStepIsNoDivisionByZero) {
  EXPECT_EQ(summary_of({}).steps, 0);
  EXPECT_EQ(text_of(summary_of({on(0, 0, "compute", "forward", 0, 1)})), "The trace has no step.\n");
}

}  // namespace
}  // namespace lockstep::internal
