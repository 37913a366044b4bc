// The protocol's rules and its broken forms: what a search over all orders of events has to find.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/server/protocol/rules.h"

namespace lockstep::internal::inline server {

/// Each form but the first breaks one rule. The last ones break what is not a rule of the machines, but how they are
/// used; the model of the cluster does that.
enum class Form {
  kRight,
  kHeldOnceByStep,
  kAnyAttemptIsTaken,
  kDoneAfterTheFirstAnswer,
  kEntriesWithoutNumbers,
  kPushesAddUp,
  kLatePushIsHeld,
  kLatePushIsNotAnswered,
  kNoEpochs,
  kEachServerSavesWhenItLikes,
  kTheChiefSavesLast,
  kACheckpointIsOneNumber,
  kNoClaim,
  kPullsNameNoPosition,
  kPullsDoNotFollowOwnSteps,
  kServersAnswerAtOnce,
  kTheBoundIsNotWaitedFor,
  kARoundBeforeItsNorm,
  kAppliedWhenPushed,
  kWorkersCommit,
};

inline Form form = Form::kRight;

/// The rules, but for the one that `form` breaks.
struct BrokenRules {
  using Right = ProtocolRules;
  static bool is(Form broken) { return form == broken; }

  static bool is_of_epoch(uint64_t own, uint64_t of_message) {
    return is(Form::kNoEpochs) || Right::is_of_epoch(own, of_message);
  }
  static bool is_too_late(bool is_decided) { return !is(Form::kLatePushIsHeld) && Right::is_too_late(is_decided); }
  static bool answers_when_too_late() { return !is(Form::kLatePushIsNotAnswered) && Right::answers_when_too_late(); }
  static bool is_to_be_held(bool holds_this, bool holds_another) {
    if (is(Form::kHeldOnceByStep)) return !holds_this && !holds_another;
    return is(Form::kPushesAddUp) || Right::is_to_be_held(holds_this, holds_another);
  }
  static bool is_next_entry(Position next, Position of_entry) {
    return is(Form::kEntriesWithoutNumbers) || Right::is_next_entry(next, of_entry);
  }
  static bool sees_enough(Position read, Position named) {
    return is(Form::kServersAnswerAtOnce) || Right::sees_enough(read, named);
  }
  static bool has_all_answers(std::size_t answers, std::size_t servers) {
    return is(Form::kDoneAfterTheFirstAnswer) ? answers > 0 : Right::has_all_answers(answers, servers);
  }
  static bool is_decisive(bool is_last_attempt_by_its_owner) {
    return is(Form::kAnyAttemptIsTaken) || Right::is_decisive(is_last_attempt_by_its_owner);
  }
  static bool is_within_bound(int64_t own, int64_t others, int64_t staleness) {
    return is(Form::kTheBoundIsNotWaitedFor) || Right::is_within_bound(own, others, staleness);
  }
  static Position position_to_see(Position needed) {
    return is(Form::kPullsNameNoPosition) ? 0 : Right::position_to_see(needed);
  }
  static bool follows_own(bool in_rounds) {
    return !is(Form::kPullsNameNoPosition) && !is(Form::kPullsDoNotFollowOwnSteps) && Right::follows_own(in_rounds);
  }
  static bool has_all_squares(std::size_t squares, std::size_t servers) {
    return is(Form::kARoundBeforeItsNorm) ? squares > 0 : Right::has_all_squares(squares, servers);
  }
  static bool cuts_are_entries() { return !is(Form::kEachServerSavesWhenItLikes) && Right::cuts_are_entries(); }
  static bool counts_at_the_entry() { return !is(Form::kTheChiefSavesLast) && Right::counts_at_the_entry(); }
  static bool is_left_out(bool is_decided, int64_t step, int64_t highest) {
    return !(is(Form::kACheckpointIsOneNumber) && step < highest) && Right::is_left_out(is_decided, step, highest);
  }
  static bool may_complete_checkpoint(uint64_t claimed_by, uint64_t own) {
    return is(Form::kNoClaim) || Right::may_complete_checkpoint(claimed_by, own);
  }
};

}  // namespace lockstep::internal::server
