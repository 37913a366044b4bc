// The functions of BasicWorkerMachine, for instances with any rules.
#pragma once

#include <algorithm>
#include <utility>

#include "lockstep/server/protocol/worker_machine.h"

namespace lockstep::internal::inline server {

template <class Rules>
BasicWorkerMachine<Rules>::BasicWorkerMachine(uint64_t epoch, WorkerId id, int32_t num_servers)
    : epoch_(epoch), id_(id), num_servers_(num_servers) {}

template <class Rules>
void BasicWorkerMachine<Rules>::receive(const WorkerMessage& message, WorkerOutput& out) {
  std::visit(
      [&](const auto& one) {
        if (!is_replaced_ && one.to == id_ && Rules::is_of_epoch(epoch_, one.epoch)) on(one, out);
      },
      message);
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const GiveStep& give, WorkerOutput& out) {
  note_reports(give.reports_noted);
  if (give.number != gives_ + 1) return;  // it has come before, or one before it has not
  ++gives_;
  if (ended_.contains(give.kind)) {  // the chief did not know it yet
    report({.step = give.step, .outcome = StepOutcome::kWithdrawn}, out);
    return;
  }
  waiting_.push_back(give);
  begin_next(out);
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const WithdrawStep& withdraw, WorkerOutput& out) {
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const GiveStep& give) { return give.step == withdraw.step; });
  if (it == waiting_.end()) return;
  waiting_.erase(it);
  report({.step = withdraw.step, .outcome = StepOutcome::kWithdrawn}, out);
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const ReportsNoted& noted, WorkerOutput& /*out*/) {
  note_reports(noted.reports);
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const WorkerReplaced& /*replaced*/, WorkerOutput& out) {
  is_replaced_ = true;
  at_hand_.reset();
  waiting_.clear();
  reports_.clear();
  out.events.emplace_back(Replaced{});
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const PulledValues& values, WorkerOutput& out) {
  if (!at_hand_ || values.step != at_hand_->step || values.number >= at_hand_->pulls.size()) return;
  Pull& pull = at_hand_->pulls[values.number];
  // The first answer counts: a later one may be of a later state, and the step may have used the first.
  if (pull.answered || pull.server != values.server) return;
  pull.answered = values.position;
  pull.request = {};
  out.events.emplace_back(ValuesArrived{.step = values.step,
                                        .pull = values.number,
                                        .server = values.server,
                                        .position = values.position,
                                        .values = values.values});
}

template <class Rules>
void BasicWorkerMachine<Rules>::on(const PushAnswer& answer, WorkerOutput& out) {
  if (!at_hand_ || answer.step != at_hand_->step || at_hand_->answered.empty()) return;
  if (answer.server < 0 || answer.server >= num_servers_) return;
  uint8_t& answered = at_hand_->answered[static_cast<std::size_t>(answer.server)];
  if (answered != 0) return;
  answered = 1;
  at_hand_->pushes[static_cast<std::size_t>(answer.server)] = {};
  at_hand_->is_too_late |= answer.verdict == PushVerdict::kTooLate;
  if (answer.verdict == PushVerdict::kRefused && !at_hand_->refusal) at_hand_->refusal = answer.error;
  at_hand_->is_refused |= answer.verdict == PushVerdict::kRefused;
  report_if_ended(out);
}

template <class Rules>
uint32_t BasicWorkerMachine<Rules>::pull(int32_t server, Payload request, WorkerOutput& out) {
  if (is_replaced_) return 0;
  const auto number = static_cast<uint32_t>(at_hand_->pulls.size());
  at_hand_->pulls.push_back({.server = server, .request = std::move(request)});
  out.to_servers.push_back({.server = server, .message = pull_request(number)});
  return number;
}

template <class Rules>
void BasicWorkerMachine<Rules>::push(std::vector<Payload> pushes, WorkerOutput& out) {
  if (is_replaced_) return;
  at_hand_->pushes = std::move(pushes);
  at_hand_->answered.assign(static_cast<std::size_t>(num_servers_), 0);
  for (int32_t server = 0; server < num_servers_; ++server) {
    out.to_servers.push_back({.server = server, .message = push_request(server)});
  }
}

template <class Rules>
void BasicWorkerMachine<Rules>::finish(StepEnd end, WorkerOutput& out) {
  if (is_replaced_) return;
  at_hand_->end = std::move(end);
  report_if_ended(out);
}

template <class Rules>
void BasicWorkerMachine<Rules>::repeat_to_server(int32_t server, WorkerOutput& out) const {
  if (!at_hand_) return;
  for (std::size_t number = 0; number < at_hand_->pulls.size(); ++number) {
    const Pull& pull = at_hand_->pulls[number];
    if (pull.server != server || pull.answered) continue;
    out.to_servers.push_back({.server = server, .message = pull_request(static_cast<uint32_t>(number))});
  }
  if (!at_hand_->answered.empty() && at_hand_->answered[static_cast<std::size_t>(server)] == 0) {
    out.to_servers.push_back({.server = server, .message = push_request(server)});
  }
}

template <class Rules>
void BasicWorkerMachine<Rules>::repeat_to_chief(WorkerOutput& out) const {
  for (const StepReport& report : reports_) out.to_chief.emplace_back(report);
}

template <class Rules>
PullRequest BasicWorkerMachine<Rules>::pull_request(uint32_t number) const {
  return {.epoch = epoch_,
          .from = id_,
          .step = at_hand_->step,
          .number = number,
          .position = at_hand_->position,
          .after = at_hand_->after,
          .request = at_hand_->pulls[number].request};
}

template <class Rules>
PushRequest BasicWorkerMachine<Rules>::push_request(int32_t server) const {
  return {
      .epoch = epoch_, .from = id_, .step = at_hand_->step, .push = at_hand_->pushes[static_cast<std::size_t>(server)]};
}

template <class Rules>
void BasicWorkerMachine<Rules>::begin_next(WorkerOutput& out) {
  if (at_hand_ || waiting_.empty()) return;
  const GiveStep give = std::move(waiting_.front());
  waiting_.pop_front();
  at_hand_ = AtHand{.step = give.step, .kind = give.kind, .position = give.position};
  if (give.follows_own) at_hand_->after = last_pushed_;
  out.events.emplace_back(StepBegins{.step = give.step, .kind = give.kind, .arguments = give.arguments});
}

template <class Rules>
void BasicWorkerMachine<Rules>::report_if_ended(WorkerOutput& out) {
  if (!at_hand_->end) return;
  const bool pushed = !at_hand_->answered.empty();
  StepReport ended{.step = at_hand_->step, .outcome = at_hand_->end->outcome, .pushed = pushed};
  ended.payload = at_hand_->end->payload;
  ended.data = at_hand_->end->data;
  ended.push = at_hand_->end->push;
  for (std::size_t number = 0; number < at_hand_->pulls.size(); ++number) {
    const Pull& pull = at_hand_->pulls[number];
    if (!pull.answered) continue;
    ended.pulled.push_back({.pull = static_cast<uint32_t>(number), .server = pull.server, .position = *pull.answered});
  }
  if (ended.outcome == StepOutcome::kDone) {
    const auto answers = std::count(at_hand_->answered.begin(), at_hand_->answered.end(), 1);
    if (pushed && !Rules::has_all_answers(static_cast<std::size_t>(answers), at_hand_->answered.size())) return;
    ended.apply = at_hand_->end->apply;
    ended.coefficient = at_hand_->end->coefficient;
    if (at_hand_->is_too_late) {
      ended.outcome = StepOutcome::kTooLate;
      ended.payload = nullptr;  // a result travels with steps that are done alone
    } else if (at_hand_->is_refused) {
      ended.outcome = StepOutcome::kFailed;
      ended.payload = at_hand_->refusal;
    } else if (pushed) {
      last_pushed_ = at_hand_->step.step;
    }
  }
  const uint32_t kind = at_hand_->kind;
  const bool has_stream_ended = ended.outcome == StepOutcome::kStreamEnded;
  at_hand_.reset();
  report(std::move(ended), out);
  if (has_stream_ended) {
    ended_.insert(kind);
    withdraw_all_of(kind, out);
  }
  begin_next(out);
}

/// Others may have data for steps of this kind that wait here.
template <class Rules>
void BasicWorkerMachine<Rules>::withdraw_all_of(uint32_t kind, WorkerOutput& out) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->kind != kind) {
      ++it;
      continue;
    }
    const StepAttempt step = it->step;
    it = waiting_.erase(it);
    report({.step = step, .outcome = StepOutcome::kWithdrawn}, out);
  }
}

template <class Rules>
void BasicWorkerMachine<Rules>::report(StepReport report, WorkerOutput& out) {
  report.epoch = epoch_;
  report.from = id_;
  report.number = ++reported_;
  reports_.push_back(report);
  out.to_chief.emplace_back(std::move(report));
}

template <class Rules>
void BasicWorkerMachine<Rules>::note_reports(uint64_t reports) {
  while (!reports_.empty() && reports_.front().number <= reports) reports_.pop_front();
}

}  // namespace lockstep::internal::server
