#include "lockstep/server/record/run_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

namespace {

using Kind = RecordEvent::Kind;

constexpr const char* kRemedy =
    "give the program and the data of the recorded run; the functions of steps must depend on nothing else than what "
    "they pull, their batches and ctx.random()";

std::string_view text_of(StepOutcome outcome) {
  constexpr std::array<std::string_view, 5> kTexts{"returned", "failed", "found no more data", "came too late",
                                                   "did not run"};
  return kTexts[static_cast<std::size_t>(outcome)];
}

bool changes_values(const LogEntry& entry) {
  return entry.kind == LogEntry::Kind::kCommit || entry.kind == LogEntry::Kind::kRound;
}

}  // namespace

void require_workers(const RunEvents& run, int64_t workers) {
  for (const RecordEvent& event : run.events) {
    if (event.kind != Kind::kRan || event.worker < workers) continue;
    throw DataError("LS-RUN-RECORD", fmt::format("the record names worker {} of {}", event.worker, workers),
                    "give a record that is not damaged");
  }
}

std::string name_of_function(uint32_t function, const std::vector<std::string>& names) {
  if (function == kTrainerStep) return "Trainer";
  return function < names.size() ? names[function] : "?";
}

RunReplay::RunReplay(const RunEvents& run, std::vector<std::string> functions, int32_t workers, Position begin,
                     Mail mail, std::function<std::string(const Payload&)> error_of)
    : run_(run),
      functions_(std::move(functions)),
      mail_(std::move(mail)),
      error_of_(std::move(error_of)),
      of_worker_(static_cast<std::size_t>(workers)),
      at_worker_(of_worker_.size()),
      gives_(of_worker_.size()),
      reports_(of_worker_.size()),
      noted_(of_worker_.size()),
      begin_(begin),
      next_entry_(begin) {
  require_workers(run_, workers);
  std::map<int64_t, Place> counts;  // of each step: the last run that was not late, or else the last one
  for (const RecordEvent& event : run_.events) {
    switch (event.kind) {
      case Kind::kRan:
        ran_.push_back({.event = &event});
        if (const auto [found, is_new] = counts.emplace(event.step, ran_.size() - 1);
            !is_new && (!event.is_late || ran_[found->second].event->is_late))
          found->second = ran_.size() - 1;
        for (const Position state : event.states) ++unanswered_[state];
        if (event.outcome != StepOutcome::kDone) endings_.push_back(event.scheduled);
        break;
      case Kind::kCancelled:
      case Kind::kGivenUp: endings_.push_back(event.scheduled); break;
      case Kind::kRoundCompleted: rounds_completed_.insert(event.scheduled); continue;
      case Kind::kChanged: changes_[event.scheduled] = event.state; continue;
      case Kind::kRead: reads_.emplace_back(event.scheduled, event.state); continue;
    }
    events_.push_back(&event);
  }
  std::map<int64_t, uint32_t> others;  // how often a step was run besides
  for (Place place = 0; place < ran_.size(); ++place) {
    const RecordEvent& event = *ran_[place].event;
    ran_[place].label = {.step = event.step, .attempt = counts[event.step] == place ? 0 : ++others[event.step]};
    places_[ran_[place].label] = place;
    of_worker_[static_cast<std::size_t>(event.worker)].push_back(place);
  }
}

int32_t RunReplay::worker_of(int64_t step) const {
  const auto found = places_.find({.step = step, .attempt = 0});
  return found == places_.end() ? 0 : ran_[found->second].event->worker;
}

void RunReplay::carry(const ToWorker& message) {
  if (const auto* give = std::get_if<GiveStep>(&message.message)) {
    bool is_known = false;
    StepAttempt label{.step = give->step.step};
    for (auto found = places_.find(label); found != places_.end(); ++label.attempt, found = places_.find(label)) {
      const Ran& ran = ran_[found->second];
      if (ran.event->function != give->kind) {
        depart(ran, fmt::format("is a call of '{}' now", name_of_function(give->kind, functions_)));
      }
      is_known = true;
      given_[label] = *give;
      deliver_steps(ran.event->worker);
    }
    if (!is_known) unknown_[give->step.step] = *give;
  } else if (const auto* withdraw = std::get_if<WithdrawStep>(&message.message)) {
    const auto unknown = unknown_.extract(withdraw->step.step);
    if (unknown) make_report(unknown.mapped(), StepOutcome::kWithdrawn);
  } else if (!std::holds_alternative<ReportsNoted>(message.message)) {
    mail_.to_worker(message);
  }
}

void RunReplay::make_report(const GiveStep& give, StepOutcome outcome) {
  made_.push_back({.epoch = give.epoch, .from = give.to, .step = give.step, .outcome = outcome});
}

void RunReplay::deliver_steps(int32_t worker) {
  const auto index = static_cast<std::size_t>(worker);
  std::deque<Place>& next = of_worker_[index];
  while (!next.empty() && !has_let_go_) {
    const StepAttempt label = ran_[next.front()].label;
    auto given = given_.extract(label);
    if (!given) return;
    ran_[next.front()].is_sent = true;
    at_worker_[index].push_back(next.front());
    next.pop_front();
    GiveStep& give = given.mapped();
    give.to = {.worker = worker, .incarnation = 1};
    give.number = ++gives_[index];
    give.reports_noted = noted_[index];
    give.step = label;
    mail_.to_worker({.worker = give.to, .message = std::move(give)});
  }
}

void RunReplay::carry(const ToServer& message) {
  if (const auto* pull = std::get_if<PullRequest>(&message.message)) {
    const auto found = places_.find(pull->step);
    if (has_let_go_ || found == places_.end()) return;
    const Ran& ran = ran_[found->second];
    if (pull->number >= ran.event->states.size()) {
      if (ran.event->is_late) return mail_.to_server(message);
      depart(ran, fmt::format("asks for values more than {} times", ran.event->states.size()));
    }
    ToServer later = message;
    std::get<PullRequest>(later.message).after.reset();
    asking_[pull->step] = ran.event->states[pull->number];
    pulls_.emplace(ran.event->states[pull->number], std::move(later));
    deliver_pulls();
  } else if (const auto* log = std::get_if<LogEntries>(&message.message)) {
    Position position = log->first;
    for (const LogEntry& entry : log->entries) {
      if (position++ != next_entry_) continue;
      ++next_entry_;
      if (changes_values(entry)) states_.push_back(next_entry_);
      entries_.push_back({.epoch = log->epoch, .first = next_entry_ - 1, .entries = {entry}});
    }
    if (!entries_.empty()) entries_.back().floor = log->floor;
    deliver_pulls();
    deliver_entries();
  } else {
    mail_.to_server(message);
  }
}

std::optional<Position> RunReplay::position_of(Position state) const {
  if (state == 0) return begin_;
  if (state > states_.size()) return std::nullopt;
  return states_[static_cast<std::size_t>(state - 1)];
}

void RunReplay::deliver_pulls() {
  while (!pulls_.empty()) {
    const auto position = position_of(pulls_.begin()->first);
    if (!position) return;
    ToServer message = std::move(pulls_.begin()->second);
    pulls_.erase(pulls_.begin());
    std::get<PullRequest>(message.message).position = *position;
    mail_.to_server(message);
  }
}

/// Nobody still has to see the state that the server has been sent.
bool RunReplay::may_pass_state() const {
  if (has_let_go_) return true;
  return (unanswered_.empty() || unanswered_.begin()->first > sent_state_) && !has_reader();
}

void RunReplay::deliver_entries() {
  while (!entries_.empty()) {
    const bool changes = changes_values(entries_.front().entries.front());
    if (changes && !may_pass_state()) return;
    if (changes) ++sent_state_;
    mail_.to_server({.server = 0, .message = std::move(entries_.front())});
    entries_.pop_front();
  }
}

void RunReplay::answered(const PulledValues& values) {
  const auto found = places_.find(values.step);
  if (found == places_.end()) return;
  Ran& ran = ran_[found->second];
  const std::vector<Position>& states = ran.event->states;
  if (values.number >= states.size() || values.number < ran.answered) return;
  ran.answered = values.number + 1;
  asking_.erase(values.step);
  note_answer(states[values.number]);
  deliver_entries();
}

void RunReplay::note_answer(Position state) {
  const auto waiting = unanswered_.find(state);
  if (waiting != unanswered_.end() && --waiting->second == 0) unanswered_.erase(waiting);
}

void RunReplay::reported(const StepReport& report) {
  const auto found = places_.find(report.step);
  if (found == places_.end()) return;
  Ran& ran = ran_[found->second];
  const std::vector<Position>& states = ran.event->states;
  // What it has not asked for is not waited for. A late report does not say what its step had asked for.
  for (; ran.answered < states.size(); ++ran.answered) note_answer(states[ran.answered]);
  asking_.erase(report.step);
  std::erase(at_worker_[static_cast<std::size_t>(ran_[found->second].event->worker)], found->second);
  arrived_[report.step] = report;
  deliver_entries();
}

bool RunReplay::take_next(ChiefMachine& machine, ChiefOutput& out) {
  if (has_let_go_) return false;
  if (!made_.empty()) {
    StepReport report = std::move(made_.front());
    made_.pop_front();
    report.number = ++reports_[static_cast<std::size_t>(report.from.worker)];
    machine.receive(report, out);
    return true;
  }
  if (is_at_end()) return false;
  const RecordEvent& event = *events_[at_];
  if (event.scheduled > scheduled_) return false;
  switch (event.kind) {
    case Kind::kRan: {
      Ran& ran = ran_[next_ran_];
      auto arrived = arrived_.extract(ran.label);
      if (!arrived) return false;
      StepReport& report = arrived.mapped();
      compare(ran, report);
      ran.has_come = true;
      ++next_ran_;
      if (const auto late = late_.find(event.step); late != late_.end()) late_.erase(late);
      const auto worker = static_cast<std::size_t>(event.worker);
      noted_[worker] = report.number;
      if (ran.label.attempt == 0) {
        report.number = ++reports_[worker];
        machine.receive(report, out);
        last_reported_ = event.step;
      }
      if (event.outcome != StepOutcome::kDone) endings_.pop_front();
      break;
    }
    case Kind::kCancelled:
      if (cancels_wanted_ == 0) return false;
      --cancels_wanted_;
      machine.cancel(out);
      endings_.pop_front();
      break;
    case Kind::kGivenUp:
      machine.step_overdue({.step = event.step}, out);
      endings_.pop_front();
      break;
    case Kind::kRoundCompleted:
    case Kind::kChanged:
    case Kind::kRead: break;
  }
  ++at_;
  return true;
}

void RunReplay::schedules(int64_t step, uint64_t writes) {
  if (const auto found = changes_.find(scheduled_); found != changes_.end()) changes_so_far_ = found->second;
  if (writes != changes_so_far_) {
    throw DivergenceError("LS-REPLAY-DEPARTS",
                          fmt::format("before it scheduled step {}, the program had made {} calls that may change "
                                      "values, and {} in the recorded run",
                                      step, writes, changes_so_far_),
                          kRemedy);
  }
  ++scheduled_;
  while (!reads_.empty() && reads_.front().first < scheduled_) reads_.pop_front();
  deliver_entries();
}

std::optional<Position> RunReplay::read_here() {
  if (has_let_go_ || is_reading_ || reads_.empty() || reads_.front().first != scheduled_) return std::nullopt;
  is_reading_ = true;
  return reads_.front().second;
}

void RunReplay::end_read() {
  if (!std::exchange(is_reading_, false)) return;
  if (!reads_.empty()) reads_.pop_front();
  deliver_entries();
}

void RunReplay::drains(bool has_ended) {
  while (!is_reading_ && !reads_.empty() && (has_ended || reads_.front().first <= scheduled_)) reads_.pop_front();
  deliver_entries();
}

std::string RunReplay::waits_for_program() const {
  if (is_at_end() || has_let_go_) return {};
  const RecordEvent& event = *events_[at_];
  if (event.scheduled > scheduled_) {
    return fmt::format("the program had scheduled {} steps of this run, and has scheduled {}", event.scheduled,
                       scheduled_);
  }
  if (event.kind == Kind::kCancelled && cancels_wanted_ == 0) return "the program called cancel()";
  if (event.kind != Kind::kRan) return {};
  const Ran& ran = ran_[next_ran_];
  const std::deque<Place>& next = of_worker_[static_cast<std::size_t>(event.worker)];
  if (!next.empty() && next.front() == next_ran_ && !given_.contains(ran.label))
    return fmt::format("{} counted or was closed", named(ran));
  return is_stuck() ? what_holds_back() : std::string();
}

bool RunReplay::is_stuck() const {
  if (has_let_go_ || !made_.empty() || next_ran_ == ran_.size()) return false;
  if (arrived_.contains(ran_[next_ran_].label)) return false;
  return std::ranges::all_of(at_worker_, [&](const std::deque<Place>& given) {
    if (given.empty()) return true;
    const auto asks = asking_.find(ran_[given.front()].label);
    return asks != asking_.end() && !has_sent(asks->second);
  });
}

bool RunReplay::passes_over_read() {
  if (is_reading_ || entries_.empty() || !has_reader() || !is_stuck()) return false;
  reads_.pop_front();
  deliver_entries();
  return true;
}

/// Of a replay that is stuck: what would let it go on.
std::string RunReplay::what_holds_back() const {
  if (!entries_.empty() && has_reader()) return {};  // passes_over_read() is for that
  for (std::size_t place = next_ran_; place < ran_.size() && !entries_.empty(); ++place) {
    const Ran& ran = ran_[place];
    const bool sees_this = std::ranges::any_of(ran.event->states, [&](Position one) { return one <= sent_state_; });
    if (!ran.is_sent && sees_this) return fmt::format("{} had seen these values", named(ran));
  }
  return fmt::format("{} had seen values that nothing makes", named(ran_[next_ran_]));
}

void RunReplay::decided(int64_t step) {
  StepAttempt label{.step = step};
  for (auto found = places_.find(label); found != places_.end(); ++label.attempt, found = places_.find(label)) {
    if (!ran_[found->second].has_come) late_.insert(step);
  }
}

void RunReplay::streams_ended(uint32_t function) {
  for (const auto& [step, give] : unknown_) {
    if (give.kind == function) make_report(give, StepOutcome::kStreamEnded);
  }
  std::erase_if(unknown_, [&](const auto& one) { return one.second.kind == function; });
}

void RunReplay::let_go() {
  has_let_go_ = true;
  pulls_.clear();
  asking_.clear();
  deliver_entries();
}

std::string RunReplay::named(const Ran& ran) const {
  return fmt::format("step {} ('{}', on worker {})", ran.event->step, name_of_function(ran.event->function, functions_),
                     ran.event->worker);
}

void RunReplay::depart(const Ran& ran, const std::string& how) const {
  throw DivergenceError("LS-REPLAY-DEPARTS", fmt::format("{} departs from its record: it {}", named(ran), how),
                        kRemedy);
}

void RunReplay::compare(const Ran& ran, const StepReport& report) const {
  const RecordEvent& event = *ran.event;
  if (event.is_late) return;
  const std::string error =
      report.outcome == StepOutcome::kFailed && report.payload ? ": " + error_of_(report.payload) : "";
  if (report.data != event.data) depart(ran, "has taken other data" + error);
  if (report.outcome != event.outcome) {
    depart(ran, fmt::format("{} now, and {} then{}", text_of(report.outcome), text_of(event.outcome), error));
  }
  if (report.pulled.size() != event.states.size()) {
    depart(ran,
           fmt::format("has asked for values {} times, and {} times then", report.pulled.size(), event.states.size()));
  }
  if (report.pushed != event.pushed) depart(ran, event.pushed ? "has not pushed" : "has pushed");
  if (report.push != event.push) depart(ran, "has pushed something else");
}

}  // namespace lockstep::internal::server
