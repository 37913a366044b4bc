#include "lockstep/train/trace/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace lockstep::internal::inline train {

namespace {

/// Below this share of the time a wait is not worth a sentence.
constexpr double kWorthSaying = 0.05;

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/// The advice that waits give: each sentence names what was waited for, how long, and what to do.
std::vector<std::string> advice_of(const TraceSummary& summary) {
  double all = 0;
  std::map<std::string, double> waits;
  for (const LaneTimes& lane : summary.lanes) {
    all += lane.all;
    for (const auto& [what, time] : lane.by_name) {
      if (what.first == "wait") waits[what.second] += time;
      if (what.first == "input") waits["wait for input"] += time;  // read by the loop itself
    }
  }
  std::vector<std::string> advice;
  const auto share = [&](const char* name) { return all > 0 ? waits[name] / all : 0; };
  if (share("wait for input") * static_cast<double>(summary.lanes.size()) > kWorthSaying) {
    advice.push_back(fmt::format(
        "The loop waited for samples for {:.0f} % of the time: read ahead (.prefetch of distribute), give map() more "
        "threads, or cache what it makes.",
        percent(waits["wait for input"] * static_cast<double>(summary.lanes.size()), all)));
  }
  if (share("wait for lanes") > kWorthSaying) {
    const auto least = std::ranges::min_element(summary.lanes, {}, [](const LaneTimes& lane) {
      const auto found = lane.by_name.find({"wait", "wait for lanes"});
      return found == lane.by_name.end() ? 0 : found->second / std::max(lane.all, 1.0);
    });
    advice.push_back(fmt::format(
        "Lanes waited for each other for {:.0f} % of the time; {} of worker {} waited least, so the others waited for "
        "it: give lanes as many replicas each (V a multiple of the lanes), samples of like cost, and cores of their "
        "own.",
        percent(waits["wait for lanes"], all), least->lane, least->worker));
  }
  if (share("wait for workers") > kWorthSaying) {
    std::map<int64_t, double> by_worker;
    for (const LaneTimes& lane : summary.lanes) {
      double& time = by_worker[lane.worker];
      for (const auto& [what, t] : lane.by_name) time += what.second == "wait for workers" ? t : 0;
    }
    const auto least = std::ranges::min_element(by_worker, {}, &std::pair<const int64_t, double>::second);
    advice.push_back(fmt::format(
        "Workers waited for each other for {:.0f} % of the time; worker {} waited least, so the others waited for it: "
        "look at its host, its input and its share of replicas.",
        percent(waits["wait for workers"], all), least->first));
  }
  if (advice.empty()) advice.emplace_back("No lane waited for more than 5 % of the time.");
  return advice;
}

}  // namespace

double LaneTimes::of(std::string_view kind) const {
  double sum = 0;
  for (const auto& [what, time] : by_name) sum += what.first == kind ? time : 0;
  return sum;
}

TraceSummary summary_of(const std::vector<NamedSlice>& slices) {
  struct Span {
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
    int64_t steps = 0;
  };
  std::map<int64_t, Span> of_workers;
  for (const NamedSlice& one : slices) {
    if (one.kind != "step") continue;
    Span& span = of_workers[one.worker];
    span.begin = std::min(span.begin, one.begin);
    span.end = std::max(span.end, one.begin + one.time);
    ++span.steps;
  }
  TraceSummary summary;
  if (of_workers.empty()) return summary;
  const Span& first = of_workers.begin()->second;
  summary.steps = first.steps;
  summary.microseconds = (first.end - first.begin) / static_cast<double>(first.steps);
  std::map<std::pair<int64_t, std::string>, LaneTimes> lanes;
  for (const NamedSlice& one : slices) {
    const auto worker = of_workers.find(one.worker);
    if (worker == of_workers.end() || !one.track.starts_with("lane ") || one.kind == "step") continue;
    const Span& span = worker->second;
    if (one.begin < span.begin || one.begin > span.end) continue;
    LaneTimes& lane = lanes[{one.worker, one.track}];
    lane.worker = one.worker;
    lane.lane = one.track;
    lane.all = span.end - span.begin;
    lane.by_name[{one.kind, one.name}] += std::min(one.time, span.end - one.begin);
  }
  for (auto& [key, lane] : lanes) summary.lanes.push_back(std::move(lane));
  return summary;
}

std::string text_of(const TraceSummary& summary) {
  if (summary.steps == 0) return "The trace has no step.\n";
  std::string out = fmt::format("{} steps, {:.3f} ms each on the mean\n\n", summary.steps, summary.microseconds / 1000);
  out += fmt::format("{:<28}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "", "compute", "meeting", "wait", "input", "other");
  std::map<std::pair<std::string, std::string>, double> by_name;
  double all = 0;
  for (const LaneTimes& lane : summary.lanes) {
    double known = 0;
    out += fmt::format("{:<28}", fmt::format("worker {}, {}", lane.worker, lane.lane));
    for (const char* kind : {"compute", "meeting", "wait", "input"}) {
      known += lane.of(kind);
      out += fmt::format("{:>7.1f} %", percent(lane.of(kind), lane.all));
    }
    out += fmt::format("{:>7.1f} %\n", percent(std::max(0.0, lane.all - known), lane.all));
    for (const auto& [what, time] : lane.by_name) by_name[what] += time;
    all += lane.all;
  }
  std::vector<std::pair<std::pair<std::string, std::string>, double>> parts(by_name.begin(), by_name.end());
  std::ranges::stable_sort(parts, std::greater(), [](const auto& part) { return part.second; });
  if (parts.size() > 12) parts.resize(12);
  out += "\nWhat took most, of all lanes:\n";
  for (const auto& [what, time] : parts)
    out += fmt::format("  {:>5.1f} %  {:>9.3f} ms a step  {} ({})\n", percent(time, all),
                       time / 1000 / static_cast<double>(summary.steps), what.second, what.first);
  out += "\n";
  for (const std::string& sentence : advice_of(summary)) out += sentence + "\n";
  return out;
}

}  // namespace lockstep::internal::train
