// The checker of traces finds what breaks a rule: without that, a test by it would say nothing.
#include "tests/support/trace_rules.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lockstep/train/trace/trace_events.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;
using testing::TraceRules;

/// A step on two lanes of each of two workers.
std::string made_trace() {
  std::vector<std::string> all;
  for (int64_t worker = 0; worker < 2; ++worker) {
    all.push_back(trace_events({.worker = worker,
                                .host = "here",
                                .lanes = {"cpu:0", "cpu:1"},
                                .slices = {{"step", 1'000, 9'000, lane_track(0), TraceKind::kStep, 0},
                                           {"forward", 2'000, 4'000, lane_track(0), TraceKind::kCompute, 0},
                                           {"forward", 2'500, 4'000, lane_track(1), TraceKind::kCompute, 1},
                                           {"wait for lanes", 4'000, 5'000, lane_track(0), TraceKind::kWait},
                                           {"update", 5'000, 8'001, lane_track(1), TraceKind::kMeeting},
                                           {"read a step", 0, 7'000, input_track(0), TraceKind::kInput}}}));
  }
  return trace_document(all, {"program", "lockstep"});
}

/// The first event of the trace that is a slice of this name.
Json& slice(Json& document, const std::string& name) {
  for (Json& event : document["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == name) return event;
  }
  throw std::out_of_range(name);
}

TEST(TraceRulesTest, FindNothingInATraceOfOurs) {
  EXPECT_EQ(TraceRules::broken_in(made_trace()), std::vector<std::string>());
}

TEST(TraceRulesTest, FindEachThingThatBreaksOne) {
  struct Break {
    const char* what;
    std::function<void(Json&)> apply;
    const char* said;
  };
  const auto flow = [](const char* phase, const Json& at, double time) {
    Json event{{"ph", phase},      {"name", "sums"}, {"cat", "flow"}, {"pid", at["pid"]},
               {"tid", at["tid"]}, {"ts", time},     {"id", 7u}};
    if (*phase == 'f') event["bp"] = "e";
    return event;
  };
  const Break breaks[]{
      {"no events", [](Json& d) { d.erase("traceEvents"); }, "no object with an array"},
      {"another unit", [](Json& d) { d["displayTimeUnit"] = "s"; }, "displayTimeUnit"},
      {"a number in otherData", [](Json& d) { d["otherData"]["x"] = 1; }, "otherData"},
      {"no phase", [](Json& d) { slice(d, "step").erase("ph"); }, "it lacks ph"},
      {"an unknown phase", [](Json& d) { slice(d, "step")["ph"] = "Q"; }, "a phase Q"},
      {"a begin without an end", [](Json& d) { slice(d, "step")["ph"] = "B"; }, "a phase B"},
      {"no name", [](Json& d) { slice(d, "step")["name"] = ""; }, "an empty name"},
      {"a process that is a text", [](Json& d) { slice(d, "step")["pid"] = "0"; }, "32 bits"},
      {"a negative thread", [](Json& d) { slice(d, "step")["tid"] = -1; }, "32 bits"},
      {"a thread of 33 bits", [](Json& d) { slice(d, "step")["tid"] = 1ll << 32; }, "32 bits"},
      {"the main thread", [](Json& d) { slice(d, "step")["tid"] = 0; }, "drawn above"},
      {"another process's thread", [](Json& d) { slice(d, "step")["pid"] = 1; }, "two processes"},
      {"a track without a name", [](Json& d) { d["traceEvents"].erase(2); }, "has no name"},
      {"a process without a name", [](Json& d) { d["traceEvents"].erase(0); }, "process 0 has no name"},
      {"a place that is a text", [](Json& d) { d["traceEvents"][1]["args"]["sort_index"] = "1"; }, "gives no place"},
      {"a name behind slices", [](Json& d) { d["traceEvents"].push_back(d["traceEvents"][0]); }, "behind slices"},
      {"two names of a track", [](Json& d) { d["traceEvents"].insert(d["traceEvents"].begin(), d["traceEvents"][2]); },
       "a second name"},
      {"no time", [](Json& d) { slice(d, "update").erase("ts"); }, "ts is no time"},
      {"a negative time", [](Json& d) { slice(d, "update")["ts"] = -1; }, "ts is no time"},
      {"a time that is a text", [](Json& d) { slice(d, "update")["ts"] = "5"; }, "ts is no time"},
      {"a negative duration", [](Json& d) { slice(d, "update")["dur"] = -0.001; }, "dur is no time"},
      {"a part of a nanosecond", [](Json& d) { slice(d, "update")["dur"] = 1.0005; }, "dur is no time"},
      {"an unknown kind", [](Json& d) { slice(d, "update")["cat"] = "sum"; }, "cat sum"},
      {"an unknown member", [](Json& d) { slice(d, "update")["id"] = 1; }, "a member id"},
      {"no replica", [](Json& d) { slice(d, "forward").erase("args"); }, "no replica"},
      {"a step without its number", [](Json& d) { slice(d, "step").erase("args"); }, "without its number"},
      {"a wrong order", [](Json& d) { slice(d, "wait for lanes")["ts"] = 1.5; }, "order of time"},
      {"an overlap", [](Json& d) { slice(d, "wait for lanes")["dur"] = 6; }, "overlaps step"},
      {"two replicas at once", [](Json& d) { slice(d, "wait for lanes")["cat"] = "compute"; }, "no replica"},
      {"an update in no step", [](Json& d) { slice(d, "update")["dur"] = 9; }, "is in no step"},
      {"a flow without an end", [&](Json& d) { d["traceEvents"].push_back(flow("s", slice(d, "forward"), 3)); },
       "not one begin and one end"},
      {"a flow that arrives before it leaves",
       [&](Json& d) {
         d["traceEvents"].push_back(flow("s", slice(d, "update"), 7));
         d["traceEvents"].push_back(flow("f", slice(d, "forward"), 3));
       },
       "arrives before"},
      {"a flow from no slice",
       [&](Json& d) {
         d["traceEvents"].push_back(flow("s", slice(d, "update"), 4.5));
         d["traceEvents"].push_back(flow("f", slice(d, "step"), 6));
       },
       "lies in no slice"},
      {"a counter that is a text",
       [](Json& d) {
         d["traceEvents"].push_back(
             {{"ph", "C"}, {"name", "queue"}, {"pid", 0}, {"tid", 10'001}, {"ts", 1}, {"args", {{"steps", "3"}}}});
       },
       "a counter that is no number"},
  };
  for (const Break& one : breaks) {
    Json document = Json::parse(made_trace());
    one.apply(document);
    const auto found = TraceRules::broken_in(document.dump());
    ASSERT_FALSE(found.empty()) << one.what;
    std::string all;
    for (const std::string& sentence : found) all += sentence + "\n";
    EXPECT_NE(all.find(one.said), std::string::npos) << one.what << ": " << all;
  }
}

TEST(TraceRulesTest, FindTextsThatAreNoJson) {
  const std::string text = made_trace();
  for (const std::string& broken :
       {text.substr(0, text.size() / 2), text + "}", "// a trace\n" + text, std::string("[1,]"), std::string()}) {
    EXPECT_EQ(TraceRules::broken_in(broken).size(), 1u) << broken.substr(0, 20);
  }
}

}  // namespace
}  // namespace lockstep::internal
