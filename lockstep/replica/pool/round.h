// What the replicas of one process have come to when all of them are at rest. These are pure functions: the pool waits
// before it calls them and acts afterwards.
#pragma once

#include <cstdint>
#include <exception>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/ids.h"
#include "lockstep/replica/meeting.h"

namespace lockstep::internal::inline replica {

/// What one replica has come to.
struct Arrival {
  enum class State : uint8_t { kMeeting, kReturned, kFailed };
  State state = State::kReturned;
  const Meeting* meeting = nullptr;  // at which it waits, in state kMeeting
  int64_t meetings = 0;              // how many it has come to in this run
};

/// What all of them have come to, in words and numbers that mean the same in every process of a run.
/// Invariant: what a process does next follows from its record, unless the run was aborted or has failed on another
/// worker. So processes with equal records go on alike.
struct RoundRecord {
  enum class State : uint8_t {
    kMeeting,    // all wait at the same meeting: what, name and signature say at which
    kEnded,      // all have returned, or failed
    kFailed,     // one has failed, and others wait
    kDifferent,  // they wait at different meetings, or some have returned
  };
  State state = State::kEnded;
  const char* what = "";
  std::string_view name = {};  // borrowed from the meeting
  uint64_t signature = 0;
};

/// The record of `arrivals`, by local replica; at least one.
RoundRecord record_of(std::span<const Arrival> arrivals);

/// What this worker proposes where its replicas have come to one meeting, or have ended.
Proposal proposal_of(const RoundRecord& record, std::span<const Arrival> arrivals, int64_t step);

/// "replica 0 came to broadcast(from replica 1) at train.cpp:88 as its meeting 2, replicas 1 to 3 returned after 1
/// meeting", by ids of the whole run: `first` is the first local replica's.
std::string account_of(std::span<const Arrival> arrivals, ReplicaId first);
/// The UsageError of replicas that do not meet in the same order.
std::exception_ptr different_meetings(std::span<const Arrival> arrivals, ReplicaId first);

/// "train.cpp:88": the file without its folders, which differ between machines. Empty where the place is not known.
std::string text_of(const std::source_location& place);
/// Whether their texts are equal.
bool are_equal_places(const std::source_location& a, const std::source_location& b);
/// Where the local replicas, which all wait at meetings, made their calls, as texts. Empty where one is not known.
std::vector<std::string> places_of(std::span<const Arrival> arrivals);

}  // namespace lockstep::internal::replica
