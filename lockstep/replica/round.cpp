#include "lockstep/replica/round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::internal {

namespace {

bool are_equal(std::string_view a, std::string_view b) { return a.data() == b.data() ? a.size() == b.size() : a == b; }

bool are_alike(const Meeting& a, const Meeting& b) {
  return (a.what() == b.what() || std::strcmp(a.what(), b.what()) == 0) && a.signature() == b.signature() &&
         are_equal(a.name(), b.name());
}

std::string text_of(const Arrival& arrival) {
  if (arrival.state == Arrival::State::kMeeting) {
    return fmt::format("came to {} as its meeting {}", arrival.meeting->describe(), arrival.meetings);
  }
  return fmt::format("{} after {} meeting{}", arrival.state == Arrival::State::kFailed ? "failed" : "returned",
                     arrival.meetings, arrival.meetings == 1 ? "" : "s");
}

}  // namespace

RoundRecord record_of(std::span<const Arrival> arrivals) {
  using enum Arrival::State;
  std::size_t waiting = 0;
  bool failed = false;
  for (const Arrival& arrival : arrivals) {
    waiting += arrival.state == kMeeting ? 1 : 0;
    failed = failed || arrival.state == kFailed;
  }
  if (waiting == 0) return {.state = RoundRecord::State::kEnded};
  if (failed) return {.state = RoundRecord::State::kFailed};
  if (waiting < arrivals.size()) return {.state = RoundRecord::State::kDifferent};
  const Meeting& first = *arrivals.front().meeting;
  const bool alike = std::all_of(arrivals.begin() + 1, arrivals.end(),
                                 [&](const Arrival& other) { return are_alike(first, *other.meeting); });
  if (!alike) return {.state = RoundRecord::State::kDifferent};
  return {RoundRecord::State::kMeeting, first.what(), first.name(), first.signature()};
}

std::string account_of(std::span<const Arrival> arrivals, ReplicaId first) {
  std::vector<std::string> actions;
  for (const Arrival& arrival : arrivals) actions.push_back(text_of(arrival));
  std::string text;
  for (std::size_t r = 0; r < actions.size();) {
    std::size_t next = r + 1;
    while (next < actions.size() && actions[next] == actions[r]) ++next;
    const int64_t begin = first + static_cast<int64_t>(r);
    const int64_t last = first + static_cast<int64_t>(next) - 1;
    text += fmt::format("{}replica{} {} {}", r == 0 ? "" : ", ", last > begin ? "s" : "",
                        last > begin ? fmt::format("{} to {}", begin, last) : fmt::format("{}", begin), actions[r]);
    r = next;
  }
  return text;
}

}  // namespace lockstep::internal
