#include "tools/trace.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/trace/trace_summary.h"
#include "tools/console.h"
#include "tools/exit_status.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw DataError("LS-FILE", fmt::format("'{}' is no trace of Lockstep: {}", file, why),
                  "give the file that `lockstep train --trace FILE` or lockstep::Trace has written");
}

std::vector<internal::NamedSlice> slices_in(const Json& document) {
  std::map<std::pair<int64_t, int64_t>, std::string> tracks;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      tracks[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  }
  std::vector<internal::NamedSlice> slices;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    slices.push_back({.worker = event.at("pid"),
                      .track = tracks[{event.at("pid"), event.at("tid")}],
                      .kind = event.at("cat"),
                      .name = event.at("name"),
                      .begin = event.at("ts"),
                      .time = event.at("dur")});
  }
  return slices;
}

/// Times are in microseconds, and a lane's are those of all traced steps.
nlohmann::ordered_json json_of(const internal::TraceSummary& summary) {
  nlohmann::ordered_json json{{"steps", summary.steps},
                              {"microseconds_of_a_step", summary.microseconds},
                              {"lanes", nlohmann::ordered_json::array()}};
  for (const internal::LaneTimes& lane : summary.lanes) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const auto& [key, time] : lane.by_name)
      parts.push_back({{"kind", key.first}, {"name", key.second}, {"microseconds", time}});
    json["lanes"].push_back(
        {{"worker", lane.worker}, {"lane", lane.lane}, {"microseconds", lane.all}, {"parts", std::move(parts)}});
  }
  return json;
}

}  // namespace

int show_trace(const std::string& file, bool json) {
  std::ifstream stream(file);
  if (!stream) throw DataError("LS-FILE", fmt::format("'{}' cannot be read", file), "give the file of a trace");
  std::vector<internal::NamedSlice> slices;
  try {
    slices = slices_in(Json::parse(stream));
  } catch (const Json::exception& error) {
    refuse(file, error.what());
  }
  const internal::TraceSummary summary = internal::summary_of(slices);
  if (summary.steps == 0) refuse(file, "it has no step");
  if (json) {
    print_json(json_of(summary));
  } else {
    std::fputs(internal::text_of(summary).c_str(), stdout);
  }
  return kClean;
}

void add_trace(CLI::App& app, Action& chosen) {
  CLI::App* const trace = app.add_subcommand("trace", "Say in words where the time of traced steps went");
  const auto file = std::make_shared<std::string>();
  trace->add_option("FILE", *file, "what `lockstep train --trace FILE` has written")->required();
  const auto json = std::make_shared<bool>(false);
  trace->add_flag("--json", *json, "print a JSON object");
  trace->callback([file, json, &chosen] { chosen = [file, json] { return show_trace(*file, *json); }; });
}

}  // namespace lockstep::tools
