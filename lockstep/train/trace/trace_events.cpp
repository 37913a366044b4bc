#include "lockstep/train/trace/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace lockstep::internal::inline train {

namespace {

/// A text in quotes. Names of hosts and devices come from outside: bytes that are no UTF-8 are replaced.
std::string in_quotes(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* text_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep: return "step";
    case TraceKind::kCompute: return "compute";
    case TraceKind::kWait: return "wait";
    case TraceKind::kMeeting: return "meeting";
    case TraceKind::kInput: return "input";
  }
  return "";
}

std::string name_of(TraceTrack track, const WorkerTrace& trace) {
  if (track >= input_track(0)) return fmt::format("input {}", track - input_track(0));
  const auto lane = static_cast<std::size_t>(track - lane_track(0));
  return lane < trace.lanes.size() ? fmt::format("lane {} ({})", lane, trace.lanes[lane])
                                   : fmt::format("lane {}", lane);
}

/// Moves slices that overlap another one of their track, and do not lie in it, to tracks beside it, which are numbered
/// from `kBeside` on.
constexpr TraceTrack kBeside = 100'000;
void nest(std::vector<TraceSlice>& slices) {
  std::ranges::sort(slices, [](const TraceSlice& a, const TraceSlice& b) {
    return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
  });
  std::map<TraceTrack, std::vector<int64_t>> open;  // the ends of slices that lie around the next one
  for (TraceSlice& slice : slices) {
    for (;; slice.track += kBeside) {
      std::vector<int64_t>& ends = open[slice.track];
      while (!ends.empty() && ends.back() <= slice.begin) ends.pop_back();
      if (!ends.empty() && slice.end > ends.back()) continue;
      ends.push_back(slice.end);
      break;
    }
  }
}

/// The number in the file of a worker's n-th track, from 1. It is no other worker's: readers that take it for a
/// thread's number of the system look for names by it. Nor is it the worker's own number: a thread with its process's
/// number is the main one, which Perfetto draws above all others.
int64_t number_of(int64_t worker, int64_t n) { return (worker + 1) * 10'000 + n; }

std::string microseconds(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

}  // namespace

std::string trace_events(const WorkerTrace& trace) {
  const auto chiefs = [&](int64_t time) {
    const int64_t all = trace.last_time - trace.first_time;
    const double share = all > 0 ? static_cast<double>(time - trace.first_time) / static_cast<double>(all) : 0;
    const auto drift = static_cast<double>(trace.last.nanoseconds - trace.first.nanoseconds);
    return time - trace.first.nanoseconds - static_cast<int64_t>(share * drift) - trace.zero;
  };
  std::vector<TraceSlice> slices = trace.slices;
  for (TraceSlice& slice : slices) {
    slice.begin = std::max<int64_t>(0, chiefs(slice.begin));
    slice.end = std::max(slice.begin, chiefs(slice.end));
  }
  nest(slices);
  // In the order in which they are drawn: tracks beside one come after it.
  const auto place_of = [](TraceTrack track) { return std::pair(track % kBeside, track / kBeside); };
  std::map<std::pair<TraceTrack, TraceTrack>, int64_t> tracks;
  for (const TraceSlice& slice : slices) tracks[place_of(slice.track)] = 0;
  std::string out;
  const auto add = [&](const std::string& event) {
    if (!out.empty()) out += ",\n";
    out += event;
  };
  const auto tell = [&](const char* what, int64_t track, const std::string& value) {
    add(fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{{}}}}})", what, trace.worker, track,
                    value));
  };
  tell("process_name", number_of(trace.worker, 0),
       fmt::format(R"("name": {})", in_quotes(fmt::format("worker {} on {}", trace.worker, trace.host))));
  tell("process_sort_index", number_of(trace.worker, 0), fmt::format(R"("sort_index": {})", trace.worker));
  int64_t n = 0;
  for (auto& [place, number] : tracks) {
    number = number_of(trace.worker, ++n);
    const auto [track, beside] = place;
    std::string name = name_of(track, trace);
    if (beside > 0) name += fmt::format(" ({})", beside + 1);
    tell("thread_name", number, fmt::format(R"("name": {})", in_quotes(name)));
    tell("thread_sort_index", number, fmt::format(R"("sort_index": {})", n));
  }
  for (const TraceSlice& slice : slices) {
    std::string args;
    if (slice.number >= 0 && slice.kind == TraceKind::kStep)
      args = fmt::format(R"(, "args": {{"step": {}}})", slice.number);
    if (slice.number >= 0 && slice.kind == TraceKind::kCompute)
      args = fmt::format(R"(, "args": {{"replica": {}}})", slice.number);
    add(fmt::format(R"({{"ph": "X", "name": {}, "cat": "{}", "pid": {}, "tid": {}, "ts": {}, "dur": {}{}}})",
                    in_quotes(slice.name), text_of(slice.kind), trace.worker, tracks.at(place_of(slice.track)),
                    microseconds(slice.begin), microseconds(slice.end - slice.begin), args));
  }
  return out;
}

std::string trace_document(const std::vector<std::string>& events_of_workers, const std::vector<std::string>& notes) {
  std::string out = R"({"displayTimeUnit": "ms", "otherData": {)";
  for (std::size_t i = 0; i + 1 < notes.size(); i += 2) {
    if (i > 0) out += ", ";
    out += in_quotes(notes[i]) + ": " + in_quotes(notes[i + 1]);
  }
  out += "}, \"traceEvents\": [\n";
  bool is_first = true;
  for (const std::string& events : events_of_workers) {
    if (events.empty()) continue;
    if (!std::exchange(is_first, false)) out += ",\n";
    out += events;
  }
  return out + "\n]}\n";
}

}  // namespace lockstep::internal::train
