// How workers see that they are about to do the same thing: what each says, and what follows from all of it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/function_ref.h"

namespace lockstep {
class World;
}

namespace lockstep::internal {

/// What one worker says before it goes on.
struct Proposal {
  enum class State : uint8_t {
    kMeets,   // its replicas have come to one call, or it makes one outside of steps
    kEnded,   // its replicas have returned from the step
    kFailed,  // it cannot go on
  };
  State state = State::kMeets;
  std::string call = {};   // what the user wrote: "all_reduce"
  std::string name = {};   // of what is called: a variable's, an optimizer's; empty where there is none
  uint64_t signature = 0;  // a digest of all arguments that must be equal
  int64_t step = 0;
  int64_t replica = -1;     // of kFailed: the first replica that failed, or -1 where none did
  std::string detail = {};  // of kMeets: the call with its arguments; of kFailed: the message. Cut to kLongestDetail

  bool operator==(const Proposal&) const = default;
};
inline constexpr std::size_t kLongestDetail = 2000;

/// A proposal as bytes for World::agree, and back. decode throws PeerError for what encode does not give; `worker` is
/// whose it is.
std::string encode(const Proposal& proposal);
Proposal decode(std::string_view bytes, int64_t worker);

/// What follows for every worker from what all have said.
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

/// Puts a proposal to all workers and gives theirs, by worker. Throws what World::agree throws.
std::vector<Proposal> propose(World& world, const Proposal& mine);

/// Throws what the proposals of all workers come to for this one, unless all make the same call: a UsageError that says
/// who does what, or the PeerError of the lowest worker that failed. Where that is this worker itself, nothing is
/// thrown: it has an error of its own.
void require_agreement(std::span<const Proposal> proposals, int64_t worker);

/// Makes `mine`, a call outside of steps, together with all workers: `check()` is this worker's own look at its
/// arguments and fills in the rest of `mine`. What it throws is thrown here, and a PeerError on the other workers. With
/// one worker nothing but the check happens.
void agree_on_call(World& world, Proposal mine, FunctionRef<void(Proposal&)> check);

}  // namespace lockstep::internal
