// The functions of BasicServerMachine, for instances with any rules.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/server/protocol/server_machine.h"

namespace lockstep::internal::inline server {

template <class Rules>
BasicServerMachine<Rules>::BasicServerMachine(uint64_t epoch, int32_t server, Position position, int64_t floor,
                                              std::set<int64_t> decided)
    : epoch_(epoch),
      server_(server),
      read_(position),
      floor_(floor),
      decided_(std::move(decided)),
      floor_after_(position),
      next_floor_(floor) {}

template <class Rules>
void BasicServerMachine<Rules>::receive(const ServerMessage& message, ServerStore& store, ServerOutput& out) {
  std::visit(
      [&](const auto& one) {
        if (Rules::is_of_epoch(epoch_, one.epoch)) on(one, store, out);
      },
      message);
}

template <class Rules>
void BasicServerMachine<Rules>::on(const PullRequest& pull, ServerStore& store, ServerOutput& out) {
  const auto holds = [&](const auto& waiting, auto key) {
    const auto [begin, end] = waiting.equal_range(key);
    return std::any_of(begin, end, [&](const auto& one) { return one.second == pull; });
  };
  if (!Rules::sees_enough(read_, pull.position)) {
    if (!holds(waiting_, pull.position)) waiting_.emplace(pull.position, pull);
  } else if (pull.after && !is_decided(*pull.after)) {
    if (!holds(waiting_for_step_, *pull.after)) waiting_for_step_.emplace(*pull.after, pull);
  } else {
    out.to_workers.push_back({.worker = pull.from,
                              .message = PulledValues{.epoch = epoch_,
                                                      .to = pull.from,
                                                      .server = server_,
                                                      .step = pull.step,
                                                      .number = pull.number,
                                                      .position = read_,
                                                      .values = store.answer(pull, read_)}});
  }
}

template <class Rules>
void BasicServerMachine<Rules>::on(const PushRequest& push, ServerStore& store, ServerOutput& out) {
  PushAnswer answer{.epoch = epoch_, .to = push.from, .server = server_, .step = push.step};
  if (Rules::is_too_late(is_decided(push.step.step))) {
    if (!Rules::answers_when_too_late()) return;
    answer.verdict = PushVerdict::kTooLate;
  } else {
    const bool holds_this = held_.contains(push.step);
    const auto of_step = held_.lower_bound({.step = push.step.step, .attempt = 0});
    const bool holds_any = of_step != held_.end() && of_step->first.step == push.step.step;
    if (Rules::is_to_be_held(holds_this, holds_any && !holds_this)) {
      answer.error = store.hold({.step = push.step, .push = push.push});
      if (answer.error) {
        answer.verdict = PushVerdict::kRefused;
      } else {
        held_.emplace(push.step, push.push);
      }
    }
  }
  out.to_workers.push_back({.worker = push.from, .message = std::move(answer)});
}

template <class Rules>
void BasicServerMachine<Rules>::on(const LogEntries& entries, ServerStore& /*store*/, ServerOutput& /*out*/) {
  Position next = read_ + unread_.size();
  Position position = entries.first;
  for (const LogEntry& entry : entries.entries) {
    if (Rules::is_next_entry(next, position++)) {
      unread_.push_back(entry);
      ++next;
    }
  }
  if (entries.floor > next_floor_) {
    floor_after_ = position;
    next_floor_ = entries.floor;
  }
}

template <class Rules>
void BasicServerMachine<Rules>::read_entry(ServerStore& store, ServerOutput& out) {
  using Kind = LogEntry::Kind;
  const LogEntry entry = std::move(unread_.front());
  unread_.pop_front();
  ++read_;
  switch (entry.kind) {
    case Kind::kCommit: {
      const HeldPush push = take({.step = entry.number, .attempt = entry.attempt});
      store.commit(entry, push);
      decide(entry.number, store);
      break;
    }
    case Kind::kClose: decide(entry.number, store); break;
    case Kind::kPart:
      parts_.push_back(take({.step = entry.number, .attempt = entry.attempt}));
      decide(entry.number, store);
      break;
    case Kind::kSquares:
      squares_ = RoundSquares{
          .epoch = epoch_, .server = server_, .round = entry.number, .squares = store.squares(entry, parts_)};
      out.to_chief.emplace_back(*squares_);
      break;
    case Kind::kRound:
      store.round(entry, parts_);
      parts_.clear();
      squares_.reset();
      break;
    case Kind::kChange: store.change(entry); break;
    case Kind::kCut:
      saved_.reset();
      store.freeze(entry);
      break;
    case Kind::kRelease: store.release(entry); break;
  }
  move_floor(store);
  answer_waiting(store, out);
}

template <class Rules>
void BasicServerMachine<Rules>::report(ServerOutput& out) const {
  out.to_chief.emplace_back(ServerRead{.epoch = epoch_, .server = server_, .position = read_});
}

template <class Rules>
void BasicServerMachine<Rules>::saved(int64_t cut, Payload saved, ServerOutput& out) {
  saved_ = CutSaved{.epoch = epoch_, .server = server_, .cut = cut, .saved = std::move(saved)};
  out.to_chief.emplace_back(*saved_);
}

template <class Rules>
void BasicServerMachine<Rules>::repeat_to_chief(ServerOutput& out) const {
  report(out);
  if (squares_) out.to_chief.emplace_back(*squares_);
  if (saved_) out.to_chief.emplace_back(*saved_);
}

template <class Rules>
HeldPush BasicServerMachine<Rules>::take(StepAttempt step) {
  auto node = held_.extract(step);
  if (node.empty()) {
    throw InternalError("LS-INTERNAL",
                        "server " + std::to_string(server_) + " was told to apply attempt " +
                            std::to_string(step.attempt) + " of step " + std::to_string(step.step) +
                            ", which it does not hold",
                        "please report it");
  }
  return {.step = step, .push = std::move(node.mapped())};
}

template <class Rules>
void BasicServerMachine<Rules>::decide(int64_t step, ServerStore& store) {
  if (step >= floor_) decided_.insert(step);
  // Other attempts of the step.
  auto it = held_.lower_bound({.step = step, .attempt = 0});
  while (it != held_.end() && it->first.step == step) {
    store.drop({.step = it->first, .push = it->second});
    it = held_.erase(it);
  }
}

template <class Rules>
void BasicServerMachine<Rules>::move_floor(ServerStore& store) {
  if (read_ >= floor_after_) floor_ = std::max(floor_, next_floor_);
  while (decided_.contains(floor_)) ++floor_;
  decided_.erase(decided_.begin(), decided_.lower_bound(floor_));
  while (!held_.empty() && held_.begin()->first.step < floor_) {
    store.drop({.step = held_.begin()->first, .push = held_.begin()->second});
    held_.erase(held_.begin());
  }
}

template <class Rules>
void BasicServerMachine<Rules>::answer_waiting(ServerStore& store, ServerOutput& out) {
  std::vector<PullRequest> ready;
  while (!waiting_.empty() && Rules::sees_enough(read_, waiting_.begin()->first)) {
    ready.push_back(std::move(waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
  }
  for (auto it = waiting_for_step_.begin(); it != waiting_for_step_.end();) {
    if (!is_decided(it->first)) {
      ++it;
      continue;
    }
    ready.push_back(std::move(it->second));
    it = waiting_for_step_.erase(it);
  }
  for (const PullRequest& pull : ready) on(pull, store, out);
}

}  // namespace lockstep::internal::server
