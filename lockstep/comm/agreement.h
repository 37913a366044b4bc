// How workers agree that they are about to do the same thing: what each worker proposes, and what follows from all
// proposals.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal::inline comm {

class Rounds;

/// What one worker tells the others before it goes on.
struct Proposal {
  enum class State : uint8_t {
    kMeets,   // its replicas have come to one call, or it makes one outside of steps
    kEnded,   // its replicas have returned from the step
    kFailed,  // it cannot go on
  };
  State state = State::kMeets;
  std::string call = {};   // what the user wrote: "all_reduce"
  std::string name = {};   // of the variable or optimizer that is called; empty where there is none
  uint64_t signature = 0;  // a digest of all arguments that must be equal
  int64_t step = 0;
  int64_t replica = -1;     // of kFailed: the first replica that failed, or -1
  std::string detail = {};  // of kMeets: the call with its arguments; of kFailed: the message. Cut to kLongestDetail
  // Of kMeets: where in the program each local replica made the call, "train.cpp:88"; need not be equal. Empty where
  // that is not known.
  std::vector<std::string> places = {};
  // What this worker tells the others, which need not be equal. propose() puts in process and host where it has failed.
  std::string data = {};

  bool operator==(const Proposal&) const = default;
};
inline constexpr std::size_t kLongestDetail = 2000;

/// Turns a proposal into a record for World::agree, and back. decode throws a PeerError for bytes that encode does not
/// make; `worker` is the worker that sent them.
std::string encode(const Proposal& proposal);
Proposal decode(std::string_view bytes, int64_t worker);

/// What follows for every worker from the proposals of all.
struct Agreement {
  enum class Outcome : uint8_t {
    kGoOn,     // all make the same call
    kEnd,      // all have ended
    kFailed,   // `worker` is the lowest that failed
    kDiffers,  // they do not do the same; `who_did_what` says who does what
  };
  Outcome outcome = Outcome::kGoOn;
  int64_t worker = -1;
  std::string who_did_what = {};
};
Agreement agreement_of(std::span<const Proposal> proposals);

/// Throws unless all workers make the same call, or all have ended the same step: a UsageError that says which worker
/// does what, or a PeerError that names the lowest worker that failed. Where that is `worker` itself, nothing is
/// thrown, because it has its own error.
void require_agreement(std::span<const Proposal> proposals, int64_t worker);

/// One round: sends `mine` to all workers, requires agreement, and returns the proposals of all, by worker. `own` is
/// this worker's error where `mine` says that it has failed. Throws what World::agree throws, and a PeerError where a
/// proposal cannot be read.
std::vector<Proposal> propose(Rounds& rounds, const Proposal& mine, const std::exception_ptr& own = nullptr);

/// Agrees with all workers that they make the call `mine`, outside of steps or while all local replicas are at rest.
/// `check(mine)` checks this worker's arguments and fills in the rest of `mine`. What it throws is thrown here; the
/// other workers then throw a PeerError. Returns the proposals of all, by worker. With one worker nothing is sent.
std::vector<Proposal> agree_on_call(Rounds& rounds, Proposal mine, FunctionRef<void(Proposal&)> check);

}  // namespace lockstep::internal::comm
