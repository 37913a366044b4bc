#include "lockstep/replica/call_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline replica {

namespace {

constexpr std::size_t kMostShown = 6;     // calls of a replica in a message
constexpr std::size_t kMostCalls = 4096;  // that are compared, of those without a call with a name between them

using Places = std::vector<std::string>;

std::optional<SwappedCalls> swapped(const Places& one, const Places& other) {
  SwappedCalls found;
  std::vector<std::string_view> of_one;
  std::vector<std::string_view> of_other;
  for (std::size_t k = 0; k < one.size(); ++k) {
    if (one[k] == other[k]) continue;
    found.calls.push_back(k);
    of_one.push_back(one[k]);
    of_other.push_back(other[k]);
  }
  std::sort(of_one.begin(), of_one.end());
  std::sort(of_other.begin(), of_other.end());
  if (of_one.empty() || of_one != of_other) return std::nullopt;
  const bool each_once = std::all_of(of_one.begin(), of_one.end(), [&](std::string_view place) {
    return std::count(one.begin(), one.end(), place) == 1;  // so it is in `other`
  });
  if (!each_once) return std::nullopt;
  return found;
}

/// By replica of all workers.
Places all_places(std::span<const Arrival> arrivals, std::span<const Proposal> workers) {
  if (workers.empty()) return places_of(arrivals);
  Places all;
  for (const Proposal& worker : workers) all.insert(all.end(), worker.places.begin(), worker.places.end());
  return all;
}

}  // namespace

std::optional<SwappedCalls> swapped_calls(std::span<const Places> places) {
  std::set<Places> seen;
  std::map<Places, std::vector<std::size_t>> alike;  // by their places in order of the alphabet
  for (std::size_t other = 0; other < places.size(); ++other) {
    if (!seen.insert(places[other]).second) continue;  // the first replica of those with equal places stands for all
    Places sorted = places[other];
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::size_t>& group = alike[std::move(sorted)];
    for (const std::size_t one : group) {
      if (auto found = swapped(places[one], places[other])) {
        found->one = one;
        found->other = other;
        return found;
      }
    }
    group.push_back(other);
  }
  return std::nullopt;
}

void CallOrder::begin() {
  calls_.clear();
  differ_ = false;
  too_many_ = false;
}

std::exception_ptr CallOrder::note(const RoundRecord& record, std::span<const Arrival> arrivals,
                                   std::span<const Proposal> workers) {
  if (record.state == RoundRecord::State::kMeeting && record.name.empty()) {
    add(record.what, arrivals, workers);
    return nullptr;
  }
  const std::exception_ptr found = differ_ && !too_many_ ? error() : nullptr;
  begin();
  return found;
}

void CallOrder::add(const char* what, std::span<const Arrival> arrivals, std::span<const Proposal> workers) {
  if (arrivals.size() == 1 && workers.empty()) return;  // one replica has nobody to differ from
  if (calls_.size() == kMostCalls) too_many_ = true;
  if (too_many_) return;
  const std::source_location place = arrivals.front().meeting->place();
  if (place.line() == 0) return;
  bool equal = std::all_of(arrivals.begin() + 1, arrivals.end(),
                           [&](const Arrival& other) { return are_equal_places(place, other.meeting->place()); });
  for (const Proposal& worker : workers) {
    if (worker.places.empty()) return;
    equal = equal && std::all_of(worker.places.begin(), worker.places.end(),
                                 [&](const std::string& other) { return other == workers.front().places.front(); });
  }
  Places places = equal ? Places() : all_places(arrivals, workers);
  if (!equal && places.empty()) return;  // one of them is not known
  calls_.push_back({what, place, std::move(places)});
  if (equal) return;
  differ_ = true;
  worker_of_.clear();
  for (std::size_t w = 0; w < workers.size(); ++w)
    worker_of_.insert(worker_of_.end(), workers[w].places.size(), static_cast<int64_t>(w));
}

std::exception_ptr CallOrder::error() const {
  const auto of_replicas =
      std::find_if(calls_.begin(), calls_.end(), [](const Call& call) { return !call.places.empty(); });
  std::vector<Places> places(of_replicas->places.size());
  for (const Call& call : calls_) {
    if (!call.places.empty() && call.places.size() != places.size())
      return nullptr;  // only a faulty record has another number of places
    for (std::size_t r = 0; r < places.size(); ++r)
      places[r].push_back(call.places.empty() ? text_of(call.place) : call.places[r]);
  }
  const auto found = swapped_calls(places);
  if (!found) return nullptr;
  const auto account_of_replica = [&](std::size_t r) {
    std::string text = fmt::format("replica {}", r);
    if (!worker_of_.empty()) text += fmt::format(" (worker {})", worker_of_[r]);
    const char* before = " made ";
    for (std::size_t i = 0; i < found->calls.size() && i < kMostShown; ++i) {
      const std::size_t k = found->calls[i];
      text += fmt::format("{}{} at {}", std::exchange(before, ", then "), calls_[k].what, places[r][k]);
    }
    return found->calls.size() > kMostShown ? text + ", ..." : text;
  };
  return std::make_exception_ptr(UsageError(
      "LS-MEETING-ORDER",
      fmt::format("replicas do not meet in the same order: {}; {}", account_of_replica(found->one),
                  account_of_replica(found->other)),
      "let every replica make these calls in the same order; where replicas take different branches of a loop on "
      "purpose, make the call in one place, after the branches"));
}

}  // namespace lockstep::internal::replica
