#include "lockstep/comm/network/end_of_run.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal::inline comm {

using Kind = Frame::Kind;

EndOfRun::EndOfRun(int64_t workers, int64_t self, Effects effects)
    : self_(self), effects_(std::move(effects)), others_(static_cast<std::size_t>(workers)) {}

bool EndOfRun::is_gone(int64_t worker) const {
  return worker != self_ && others_[static_cast<std::size_t>(worker)].gone.has_value();
}

int64_t EndOfRun::arbiter() const {
  int64_t first = 0;
  while (is_gone(first)) ++first;  // it is this worker at the latest
  return first;
}

void EndOfRun::hear(const std::string& reason) {
  if (!reason_.empty()) return;
  reason_ = reason.empty() ? "a worker ended the run without a reason" : reason.substr(0, kLongestReason);
}

void EndOfRun::notice(const std::string& reason) {
  hear(reason);
  pursue();
}

/// Sees that the arbiter ends the run.
void EndOfRun::pursue() {
  if (end_ || reason_.empty()) return;
  const int64_t first = arbiter();
  if (first == self_) {
    if (!std::exchange(arbitrates_, true)) freeze_others();
    decide_if_all_answered();
  } else if (told_ != first) {
    told_ = first;
    effects_.send(first, {.kind = Kind::kEnding, .text = reason_});
  }
}

void EndOfRun::freeze_others() {
  effects_.freeze();
  for (std::size_t w = 0; w < others_.size(); ++w) {
    const auto worker = static_cast<int64_t>(w);
    if (worker != self_ && !is_gone(worker)) effects_.send(worker, {.kind = Kind::kFreeze, .text = reason_});
  }
}

void EndOfRun::decide_if_all_answered() {
  if (end_ || !arbitrates_) return;
  const Calls mine = effects_.freeze();
  uint64_t taken = mine.taken;
  uint64_t returned = mine.returned;
  for (std::size_t w = 0; w < others_.size(); ++w) {
    const Other& other = others_[w];
    if (static_cast<int64_t>(w) == self_ || other.gone == Gone::kDead) continue;
    if (!other.gone && !other.frozen_at) return;
    const Calls theirs = other.frozen_at.value_or(other.calls);
    taken = std::min(taken, theirs.taken);
    returned = std::max(returned, theirs.returned);
  }
  // Where one has returned from a call, all have taken it, also those from whom this was not heard.
  adopt({.calls = std::max(taken, returned), .reason = reason_}, self_);
}

void EndOfRun::set_gone(int64_t worker, Gone how, const Calls& calls) {
  Other& other = others_[static_cast<std::size_t>(worker)];
  if (other.gone && other.gone != Gone::kUnreachable && how != Gone::kDead) return;
  other.gone = how;
  other.calls.taken = std::max(other.calls.taken, calls.taken);
  other.calls.returned = std::max(other.calls.returned, calls.returned);
  pursue();
}

void EndOfRun::receive(int64_t from, const Frame& frame) {
  Other& other = others_[static_cast<std::size_t>(from)];
  if (other.gone == Gone::kUnreachable) {
    // It had only seemed gone.
    other.gone.reset();
    arbitrates_ = arbitrates_ && arbiter() == self_;
    if (arbitrates_ && !end_) effects_.send(from, {.kind = Kind::kFreeze, .text = reason_});
  }
  switch (frame.kind) {
    case Kind::kEnding:
      if (end_) return effects_.send(from, end_frame_of_round(self_));
      hear(frame.text);
      // One that asks while this worker arbitrates may have been asked before it could answer.
      if (arbitrates_ && !is_gone(from)) effects_.send(from, {.kind = Kind::kFreeze, .text = reason_});
      return pursue();
    case Kind::kFreeze:
      if (end_) return effects_.send(from, end_frame_of_round(from));
      hear(frame.text);
      // Each worker answers one arbiter only, the first one that it can reach: two would decide differently.
      if (from == arbiter()) {
        arbitrates_ = false;
        answered_ = told_ = from;
        effects_.send(from, {.kind = Kind::kFrozen, .calls = effects_.freeze()});
      } else {
        pursue();
      }
      return;
    case Kind::kFrozen: other.frozen_at = frame.calls; return decide_if_all_answered();
    case Kind::kEnd: {
      if (end_ || frame.number >= others_.size()) return;  // no worker has such a number
      // What a former arbiter decided may come late, by way of one that is dead too. It does not count where a later
      // arbiter has been told that this worker knew of none: that one may have decided differently.
      const auto round = static_cast<int64_t>(frame.number);
      if (round < std::min(answered_, arbiter())) {
        // If the one that told it is alive, it says the same again to the arbiter of now, or as that.
        effects_.send(arbitrates_ ? from : arbiter(),
                      {.kind = arbitrates_ ? Kind::kFreeze : Kind::kEnding, .text = reason_});
        return;
      }
      return adopt({.calls = frame.calls.taken, .reason = frame.text}, arbitrates_ ? self_ : round);
    }
    default: return pursue();  // a heartbeat, of one that had seemed gone perhaps
  }
}

void EndOfRun::ask_again(int64_t worker) {
  if (end_ || reason_.empty() || is_gone(worker)) return;
  if (arbitrates_) {
    if (!others_[static_cast<std::size_t>(worker)].frozen_at) {
      effects_.send(worker, {.kind = Kind::kFreeze, .text = reason_});
    }
  } else if (worker == arbiter()) {
    effects_.send(worker, {.kind = Kind::kEnding, .text = reason_});
  }
}

Frame EndOfRun::end_frame() const { return end_frame_of_round(round_); }

Frame EndOfRun::end_frame_of_round(int64_t round) const {
  return {.kind = Kind::kEnd,
          .number = static_cast<uint64_t>(round),
          .calls = {.taken = end_->calls},
          .text = end_->reason};
}

void EndOfRun::adopt(const RunEnd& end, int64_t round) {
  if (end_) return;
  end_ = end;
  round_ = round;
  effects_.end(end);
  // All hear it from all: whoever is gone now does not matter.
  for (std::size_t w = 0; w < others_.size(); ++w) {
    const auto worker = static_cast<int64_t>(w);
    // One that cannot be reached, or seems so, learns why as well, should this come through.
    if (worker == self_ || others_[w].gone == Gone::kDead) continue;
    effects_.send(worker, end_frame());
  }
}

}  // namespace lockstep::internal::comm
