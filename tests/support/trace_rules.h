// The rules that the file of a trace keeps, strictly: what the description of Trace Event JSON asks, what Perfetto's
// reader makes of it, and what a trace of ours promises beyond that.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

/// Finds what breaks a rule, a sentence for each; nothing in a file that keeps all.
class TraceRules {
 public:
  using Json = nlohmann::json;

  static std::vector<std::string> broken_in(const std::string& text) {
    TraceRules rules;
    Json document;
    try {
      document = Json::parse(text);  // strict: no comments, no commas behind the last element, UTF-8 alone
    } catch (const Json::exception& error) {
      return {error.what()};
    }
    rules.look_at(document);
    return rules.broken_;
  }

 private:
  using Track = std::pair<int64_t, int64_t>;  // process and thread
  /// Nanoseconds: the file has microseconds with three decimals, so nothing is lost.
  struct Slice {
    int64_t begin;
    int64_t end;
    std::string name;
    std::string kind;
  };
  struct FlowEnd {
    std::string phase;
    Track track;
    int64_t at;
    std::size_t event;
  };

  void require(bool keeps, const std::string& what) {
    if (!keeps) broken_.push_back(what);
  }

  void look_at(const Json& document) {
    if (!document.is_object() || !document.contains("traceEvents") || !document["traceEvents"].is_array()) {
      return broken_.push_back("the file is no object with an array traceEvents");
    }
    require(document.value("displayTimeUnit", Json()) == "ms", "displayTimeUnit is not \"ms\"");
    const Json notes = document.value("otherData", Json::object());
    for (const auto& [name, value] : notes.items()) {
      require(value.is_string(), "otherData has no text as " + name);
    }
    for (const auto& [name, value] : document.items()) {
      require(name == "displayTimeUnit" || name == "otherData" || name == "traceEvents", "the file has a " + name);
    }
    for (const Json& event : document["traceEvents"]) {
      where_ = "event " + std::to_string(number_++) + ": ";
      look_at_event(event);
    }
    where_.clear();
    for (const auto& [track, slices] : slices_) look_at_track(track, slices);
    for (const auto& [track, name] : names_) {
      require(slices_.count(track) != 0, "the track " + name + " has no slice");
      require(sort_indexes_.count(track) != 0, "the track " + name + " has no place");
    }
    for (const auto& [process, places] : places_of_process_) {
      require(process_names_.count(process) != 0, "process " + std::to_string(process) + " has no name");
      require(process_places_.count(process) != 0, "process " + std::to_string(process) + " has no place");
    }
    look_at_steps();
    look_at_flows();
  }

  void look_at_event(const Json& event) {
    if (!event.is_object()) return broken_.push_back(where_ + "it is no object");
    for (const char* const name : {"ph", "name", "pid", "tid"}) {
      if (!event.contains(name)) return broken_.push_back(where_ + "it lacks " + name);
    }
    if (!event["ph"].is_string() || !event["name"].is_string()) return broken_.push_back(where_ + "ph or name");
    for (const char* const name : {"pid", "tid"}) {
      const bool fits = event[name].is_number_integer() && event[name] >= 0 && event[name] <= 0xffff'ffff;
      if (!fits) return broken_.push_back(where_ + name + " is no number of 32 bits");
    }
    require(!event["name"].get<std::string>().empty(), where_ + "an empty name");
    const Track track{event["pid"], event["tid"]};
    require(track.first != track.second, where_ + "a thread with its process's number is drawn above all others");
    const auto [owner, is_new] = process_of_thread_.emplace(track.second, track.first);
    require(owner->second == track.first, where_ + "two processes have a thread of this number");
    const std::string phase = event["ph"];
    if (phase == "M") return look_at_name(event, track);
    if (phase == "X") return look_at_slice(event, track);
    if (phase == "s" || phase == "f") return look_at_flow(event, track);
    if (phase == "C") return look_at_counter(event);
    broken_.push_back(where_ + "a phase " + phase);
  }

  void require_members(const Json& event, const std::set<std::string>& known) {
    for (const auto& [name, value] : event.items()) require(known.count(name) != 0, where_ + "a member " + name);
  }

  void look_at_name(const Json& event, const Track& track) {
    require_members(event, {"ph", "name", "pid", "tid", "args"});
    require(places_of_process_.count(track.first) == 0, where_ + "names come behind slices");
    const std::string what = event["name"];
    const Json args = event.value("args", Json::object());
    if (what == "process_name" || what == "thread_name") {
      const bool fits = args.size() == 1 && args.value("name", Json()).is_string() && args["name"] != "";
      if (!fits) return broken_.push_back(where_ + "it gives no name");
      const bool is_first = what == "process_name" ? process_names_.emplace(track.first, args["name"]).second
                                                   : names_.emplace(track, args["name"]).second;
      require(is_first, where_ + "a second name");
      if (what == "thread_name") {
        require(names_of_process_[track.first].insert(args["name"]).second, where_ + "two tracks of one name");
      }
    } else if (what == "process_sort_index" || what == "thread_sort_index") {
      const bool fits = args.size() == 1 && args.value("sort_index", Json()).is_number_integer();
      if (!fits) return broken_.push_back(where_ + "it gives no place");
      const bool is_first = what == "process_sort_index"
                                ? process_places_.emplace(track.first, args["sort_index"]).second
                                : sort_indexes_.emplace(track, args["sort_index"]).second;
      require(is_first, where_ + "a second place");
      // Readers that do not know this event sort by the thread's number.
      if (what == "thread_sort_index") {
        require(++numbers_[track.first][args["sort_index"]] == 1, where_ + "two tracks at one place");
        for (const auto& [other, place] : sort_indexes_) {
          if (other.first != track.first || other == track) continue;
          require((other.second < track.second) == (place < args["sort_index"].get<int64_t>()),
                  where_ + "the numbers of tracks are not in their order");
        }
      }
    } else {
      broken_.push_back(where_ + "a metadata event " + what);
    }
  }

  /// A time in nanoseconds; -1 for what is none.
  int64_t time_in(const Json& event, const char* name) {
    const Json value = event.value(name, Json());
    const double microseconds = value.is_number() ? value.get<double>() : -1;
    const double nanoseconds = std::round(microseconds * 1000);
    const bool fits = std::isfinite(microseconds) && microseconds >= 0 && nanoseconds < 9e15 &&
                      std::abs(microseconds * 1000 - nanoseconds) < 1e-3;
    require(fits, where_ + name + " is no time with three decimals");
    return fits ? static_cast<int64_t>(nanoseconds) : -1;
  }

  void look_at_slice(const Json& event, const Track& track) {
    require_members(event, {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"});
    const std::string kind = event.value("cat", "");
    require(std::set<std::string>{"step", "compute", "wait", "meeting", "input"}.count(kind) != 0,
            where_ + "cat " + kind);
    // In a slice's name older readers take no \u, and need none: these names are literals.
    for (const char c : event["name"].get<std::string>()) require(c >= ' ' && c <= '~', where_ + "a name beyond ASCII");
    const int64_t begin = time_in(event, "ts");
    const int64_t time = time_in(event, "dur");
    if (begin < 0 || time < 0) return;
    require(names_.count(track) != 0, where_ + "its track has no name");
    const Json args = event.value("args", Json::object());
    for (const auto& [name, value] : args.items()) {
      require(value.is_number_integer() && value >= 0, where_ + "an argument " + name);
    }
    if (kind == "step") require(event.value("args", Json()).contains("step"), where_ + "a step without its number");
    if (kind == "compute") require(event.value("args", Json()).contains("replica"), where_ + "no replica is named");
    // By begin, and the longer one first, so that each slice comes behind those that it lies in.
    const std::pair place(begin, -(begin + time));
    const auto [last, is_first] = places_of_process_.emplace(track.first, place);
    require(is_first || last->second <= place, where_ + "it is not in the order of time");
    last->second = place;
    slices_[track].push_back({begin, begin + time, event["name"], kind});
  }

  void look_at_counter(const Json& event) {
    require_members(event, {"ph", "name", "pid", "tid", "ts", "args"});
    time_in(event, "ts");
    require(!event.value("args", Json::object()).empty(), where_ + "a counter without a number");
    const Json args = event.value("args", Json::object());
    for (const auto& [name, value] : args.items()) {
      require(value.is_number(), where_ + "a counter that is no number");
    }
  }

  void look_at_flow(const Json& event, const Track& track) {
    require_members(event, {"ph", "name", "cat", "pid", "tid", "ts", "id", "bp"});
    const bool has_id = event.value("id", Json()).is_number_unsigned();
    require(has_id, where_ + "a flow without a number");
    if (event["ph"] == "f") require(event.value("bp", Json()) == "e", where_ + "an end that is not bound to its slice");
    if (!has_id) return;
    const std::string key = event.value("cat", "") + "/" + event["name"].get<std::string>() + "/" + event["id"].dump();
    flows_[key].push_back({event["ph"], track, time_in(event, "ts"), number_});
  }

  /// Slices of a track lie in one another or side by side. A lane's replicas take turns.
  void look_at_track(const Track& track, const std::vector<Slice>& slices) {
    const std::string name = names_.count(track) != 0 ? names_[track] : "without a name";
    std::vector<const Slice*> open;
    for (const Slice& slice : slices) {
      while (!open.empty() && open.back()->end <= slice.begin) open.pop_back();
      if (!open.empty()) {
        require(slice.end <= open.back()->end, name + ": " + slice.name + " overlaps " + open.back()->name);
        const bool is_in_compute = open.back()->kind == "compute" && slice.kind == "compute";
        require(!is_in_compute, name + ": two replicas at once");
        require(slice.kind != "step", name + ": a step within " + open.back()->name);
      }
      open.push_back(&slice);
    }
  }

  /// What lanes do is part of a step of their worker.
  void look_at_steps() {
    std::map<int64_t, std::vector<Slice>> steps;
    for (const auto& [track, slices] : slices_) {
      for (const Slice& slice : slices) {
        if (slice.kind == "step") steps[track.first].push_back(slice);
      }
    }
    for (const auto& [track, slices] : slices_) {
      for (const Slice& slice : slices) {
        if (slice.kind != "compute" && slice.kind != "meeting") continue;
        bool lies_in_one = false;
        for (const Slice& step : steps[track.first]) {
          lies_in_one = lies_in_one || (step.begin <= slice.begin && slice.end <= step.end);
        }
        require(lies_in_one, names_[track] + ": " + slice.name + " is in no step");
      }
    }
  }

  void look_at_flows() {
    for (const auto& [key, ends] : flows_) {
      if (ends.size() != 2 || ends[0].phase == ends[1].phase) {
        broken_.push_back("the flow " + key + " has not one begin and one end");
        continue;
      }
      const FlowEnd& from = ends[0].phase == "s" ? ends[0] : ends[1];
      const FlowEnd& to = ends[0].phase == "s" ? ends[1] : ends[0];
      require(from.at <= to.at, "the flow " + key + " arrives before it leaves");
      for (const FlowEnd& end : ends) {
        bool lies_in_slice = false;
        for (const Slice& slice : slices_[end.track]) {
          lies_in_slice = lies_in_slice || (slice.begin <= end.at && end.at <= slice.end);
        }
        require(lies_in_slice, "an end of the flow " + key + " lies in no slice");
      }
    }
  }

  std::vector<std::string> broken_;
  std::string where_;
  std::size_t number_ = 0;
  std::map<int64_t, std::string> process_names_;
  std::map<int64_t, int64_t> process_places_;
  std::map<Track, std::string> names_;
  std::map<int64_t, std::set<std::string>> names_of_process_;
  std::map<Track, int64_t> sort_indexes_;
  std::map<int64_t, std::map<int64_t, int>> numbers_;
  std::map<int64_t, int64_t> process_of_thread_;
  std::map<int64_t, std::pair<int64_t, int64_t>> places_of_process_;  // begin and minus end of its last slice
  std::map<Track, std::vector<Slice>> slices_;
  std::map<std::string, std::vector<FlowEnd>> flows_;
};

}  // namespace lockstep::testing
