// What the replicas of one process have come to when all of them are at rest. These are pure functions: the pool waits
// before it calls them and acts afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/ids.h"
#include "lockstep/replica/meeting.h"

namespace lockstep::internal {

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

/// "replica 0 came to broadcast(from replica 1) as its meeting 2, replicas 1 to 3 returned after 1 meeting", by ids of
/// the whole run: `first` is the first local replica's.
std::string account_of(std::span<const Arrival> arrivals, ReplicaId first);

}  // namespace lockstep::internal
