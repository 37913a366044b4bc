#include "lockstep/replica/pool/round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline replica {

namespace {

bool are_equal(std::string_view a, std::string_view b) { return a.data() == b.data() ? a.size() == b.size() : a == b; }

bool are_alike(const Meeting& a, const Meeting& b) {
  return (a.what() == b.what() || std::strcmp(a.what(), b.what()) == 0) && a.signature() == b.signature() &&
         are_equal(a.name(), b.name());
}

const char* file_of(const std::source_location& place) {
  const char* const name = std::strrchr(place.file_name(), '/');
  return name ? name + 1 : place.file_name();
}

std::string action_of(const Arrival& arrival) {
  if (arrival.state == Arrival::State::kMeeting) {
    const std::string place = text_of(arrival.meeting->place());
    return fmt::format("came to {}{}{} as its meeting {}", arrival.meeting->describe(), place.empty() ? "" : " at ",
                       place, arrival.meetings);
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

Proposal proposal_of(const RoundRecord& record, std::span<const Arrival> arrivals, int64_t step) {
  Proposal mine{.call = record.what, .name = std::string(record.name), .signature = record.signature, .step = step};
  if (record.state == RoundRecord::State::kEnded) {
    mine.state = Proposal::State::kEnded;
  } else if (record.state == RoundRecord::State::kMeeting) {
    mine.detail = arrivals.front().meeting->describe();
    mine.places = places_of(arrivals);
  }
  return mine;
}

std::string account_of(std::span<const Arrival> arrivals, ReplicaId first) {
  std::vector<std::string> actions;
  for (const Arrival& arrival : arrivals) actions.push_back(action_of(arrival));
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

std::exception_ptr different_meetings(std::span<const Arrival> arrivals, ReplicaId first) {
  return std::make_exception_ptr(UsageError(
      "LS-MEETING-ORDER", fmt::format("replicas do not meet in the same order: {}", account_of(arrivals, first)),
      "every replica must make the same calls, in the same order, with the same shapes, dtypes and options: "
      "take them out of branches that differ between replicas"));
}

std::string text_of(const std::source_location& place) {
  return place.line() == 0 ? "" : fmt::format("{}:{}", file_of(place), place.line());
}

bool are_equal_places(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && (a.file_name() == b.file_name() || std::strcmp(file_of(a), file_of(b)) == 0);
}

std::vector<std::string> places_of(std::span<const Arrival> arrivals) {
  std::vector<std::string> places;
  for (const Arrival& arrival : arrivals) {
    places.push_back(text_of(arrival.meeting->place()));
    if (places.back().empty()) return {};
  }
  return places;
}

}  // namespace lockstep::internal::replica
