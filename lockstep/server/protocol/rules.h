// The decisions on which "a step counts once, on all servers or on none" rests: pure functions, each of which the tests
// replace by a wrong one that their search has to find.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// What the three machines are instances of their templates for. A test gives them another class of the same functions.
struct ProtocolRules {
  // All machines.

  /// A message is of this run since its last restore. What was sent before a restore says nothing about the state
  /// after.
  static bool is_of_epoch(uint64_t own, uint64_t of_message) { return own == of_message; }

  // The server.

  /// A push for a step that is decided would be held for good.
  static bool is_too_late(bool is_decided) { return is_decided; }
  /// Every push is answered. A worker whose step was closed would otherwise wait for an answer for ever.
  static bool answers_when_too_late() { return true; }
  /// Attempts of a step are held apart, because servers may hold different ones; each is held once.
  static bool is_to_be_held(bool holds_this_attempt, bool /*holds_another_attempt*/) { return !holds_this_attempt; }
  /// Entries are taken once each, in order, whatever arrives.
  static bool is_next_entry(Position next, Position of_entry) { return next == of_entry; }
  /// A pull is answered by a state that has seen what the pull names.
  static bool sees_enough(Position read, Position named) { return read >= named; }

  // The worker.

  /// Only when all servers hold an attempt can the chief decide for it.
  static bool has_all_answers(std::size_t answers, std::size_t servers) { return answers == servers; }

  // The chief.

  /// Only the attempt that was given last counts, reported by the incarnation that it was given to.
  static bool is_decisive(bool is_last_attempt_by_its_owner) { return is_last_attempt_by_its_owner; }
  /// A worker that has `own` steps may begin another one where each other worker that is at work has `others` at least.
  static bool is_within_bound(int64_t own, int64_t others, int64_t staleness) { return others >= own - staleness; }
  /// What a step has to see is named in its pulls, because servers read the log at different times.
  static Position position_to_see(Position needed) { return needed; }
  /// Also what the worker itself has pushed and the chief has not decided yet; in rounds parts do not see each other.
  static bool follows_own(bool in_rounds) { return !in_rounds; }
  /// A round waits for the squares of all servers, which decide its coefficient.
  static bool has_all_squares(std::size_t squares, std::size_t servers) { return squares == servers; }
  /// A cut is a place in the log, so that it comes after the same steps on all servers.
  static bool cuts_are_entries() { return true; }
  /// The chief's own counters of a cut are those of that place, not those when the last server has written.
  static bool counts_at_the_entry() { return true; }
  /// After a restore a number that the cut left out is scheduled again, even if a higher one counts.
  static bool is_left_out(bool is_decided_in_cut, int64_t /*step*/, int64_t /*highest_that_counts*/) {
    return !is_decided_in_cut;
  }
  /// A checkpoint is completed only by the run that holds the folder's claim. A chief that slept for an hour holds it
  /// no more.
  static bool may_complete_checkpoint(uint64_t claimed_by_epoch, uint64_t own_epoch) {
    return claimed_by_epoch == own_epoch;
  }
};

/// Of steps in rounds: which round a step is a part of. Numbers of steps are not negative.
inline int64_t round_of(int64_t step, int64_t parts) { return step / parts; }

/// The first number of a round after `step` numbers: where a round begins that has all of its parts.
inline int64_t first_of_next_round(int64_t step, int64_t parts) { return (step + parts - 1) / parts * parts; }

/// A step that was given `gives` times may be given again after it was lost, at most `attempts` times in all.
inline bool may_be_given_again(uint32_t gives, uint32_t attempts) { return gives <= attempts; }

}  // namespace lockstep::internal::server
