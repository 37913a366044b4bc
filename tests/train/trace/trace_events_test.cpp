// The text of a trace keeps the rules of Trace Event JSON, as Perfetto reads it.
#include "lockstep/train/trace/trace_events.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/trace_rules.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

WorkerTrace with(std::vector<TraceSlice> slices) {
  return {.worker = 0, .host = "here", .lanes = {"cpu:0", "cpu:1"}, .slices = std::move(slices), .zero = 1'000'000};
}

std::vector<Json> slices_of(const WorkerTrace& trace) {
  std::vector<Json> slices;
  const Json document = Json::parse(trace_document({trace_events(trace)}, {}));
  for (const Json& event : document["traceEvents"])
    if (event["ph"] == "X") slices.push_back(event);
  return slices;
}

TEST(TraceEvents, HaveMicrosecondsSinceTheChiefsFirst) {
  const auto slices = slices_of(with({{"forward", 1'001'500, 1'004'001, lane_track(0), TraceKind::kCompute, 3}}));
  ASSERT_EQ(slices.size(), 1);
  EXPECT_EQ(slices[0]["ts"], 1.5);
  EXPECT_EQ(slices[0]["dur"], 2.501);
  EXPECT_EQ(slices[0]["cat"], "compute");
  EXPECT_EQ(slices[0]["args"]["replica"], 3);
}

TEST(TraceEvents, NameEachTrackByItsDevice) {
  const Json document = Json::parse(
      trace_document({trace_events(with({{"read a step", 1'000'000, 1'000'001, input_track(2), TraceKind::kInput},
                                         {"update", 1'000'000, 1'000'001, lane_track(1), TraceKind::kMeeting},
                                         {"update", 1'000'000, 1'000'003, lane_track(0), TraceKind::kMeeting},
                                         {"odd", 1'000'002, 1'000'004, lane_track(0), TraceKind::kMeeting}}))},
                     {}));
  std::map<int64_t, std::string> names;  // readers draw tracks by their places, or by their numbers
  std::map<int64_t, std::string> places;
  std::map<int64_t, int64_t> place_of;
  for (const Json& event : document["traceEvents"]) {
    if (event["name"] == "thread_sort_index") place_of[event["tid"]] = event["args"]["sort_index"];
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  for (const auto& [number, name] : names) places[place_of.at(number)] = name;
  const std::vector<std::string> expected{"lane 0 (cpu:0)", "lane 0 (cpu:0) (2)", "lane 1 (cpu:1)", "input 2"};
  const auto in_order = [](const auto& map) {
    std::vector<std::string> all;
    for (const auto& [key, name] : map) all.push_back(name);
    return all;
  };
  EXPECT_EQ(in_order(names), expected);
  EXPECT_EQ(in_order(places), expected);
}

TEST(TraceEvents, HaveTracksThatNoReaderTakesForAnother) {
  // A thread with its process's number is the main thread, and older readers find names of threads by the thread alone.
  std::vector<std::string> all;
  std::set<int64_t> threads;
  for (int64_t worker = 0; worker < 4; ++worker) {
    WorkerTrace trace;
    trace.worker = worker;
    for (int lane = 0; lane < 4; ++lane) {
      trace.slices.push_back({"step", 10, 20, lane_track(lane), TraceKind::kStep, 0});
    }
    for (const Json& slice : slices_of(trace)) {
      EXPECT_NE(slice["tid"], worker);
      EXPECT_TRUE(threads.insert(slice["tid"].get<int64_t>()).second) << slice;
    }
    all.push_back(trace_events(trace));
  }
  EXPECT_EQ(testing::TraceRules::broken_in(trace_document(all, {})), std::vector<std::string>());
}

TEST(TraceEvents, OfATrackNestOrHaveATrackOfTheirOwn) {
  const auto slices = slices_of(with({{"step", 1'000'000, 1'009'000, 1, TraceKind::kStep, 0},
                                      {"forward", 1'001'000, 1'004'000, 1, TraceKind::kCompute, 0},
                                      {"odd", 1'003'000, 1'006'000, 1, TraceKind::kCompute, 1},
                                      {"backward", 1'004'000, 1'008'000, 1, TraceKind::kCompute, 0}}));
  std::map<std::string, int64_t> tracks;
  for (const Json& slice : slices) tracks[slice["name"]] = slice["tid"];
  EXPECT_EQ(tracks["step"], tracks["forward"]);
  EXPECT_EQ(tracks["step"], tracks["backward"]);
  EXPECT_NE(tracks["step"], tracks["odd"]);
}

TEST(TraceEvents, OfAnotherClockAreMovedOnAStraightLine) {
  WorkerTrace trace = with({{"a", 2'000'000, 2'000'000, 1, TraceKind::kCompute},
                            {"b", 3'000'000, 3'000'000, 1, TraceKind::kCompute},
                            {"c", 4'000'000, 4'000'000, 1, TraceKind::kCompute}});
  trace.first_time = 2'000'000;
  trace.last_time = 4'000'000;
  trace.first = {500'000, 0};
  trace.last = {700'000, 0};
  std::vector<double> times;
  for (const Json& slice : slices_of(trace)) times.push_back(slice["ts"]);
  EXPECT_EQ(times, (std::vector<double>{500, 1400, 2300}));
}

TEST(TraceEvents, KeepTextsFromOutsideInTheirQuotes) {
  WorkerTrace trace = with({{"a", 1'000'000, 1'000'000, 1, TraceKind::kCompute}});
  trace.host = "a \"host\"\n\\ in K\u00f6ln \xff";
  trace.lanes = {"cpu\":0"};
  const Json document = Json::parse(trace_document({trace_events(trace), ""}, {"a\"", "b\\"}));
  EXPECT_EQ(document["otherData"]["a\""], "b\\");
  EXPECT_EQ(document["traceEvents"][0]["args"]["name"], "worker 0 on a \"host\"\n\\ in K\u00f6ln \ufffd");
}

}  // namespace
}  // namespace lockstep::internal
