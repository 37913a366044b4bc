// What an input does to one machine of a Cluster, and what an observer of the chief learns from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/server/protocol/cluster_model.h"

namespace lockstep::internal::inline server {

// The chief.

template <class Input>
Cluster::Result Cluster::chief_input(uint32_t node, const Input& input) {
  ChiefNode chief = chiefs_[node];
  Result result;
  const Position before = chief.machine.position();
  ChiefOutput out;
  const StepReport* report = input(chief, out);
  // An observer looks at the pulls before the report's step is decided in its own books.
  if (report != nullptr) check_pulls(chief, *report);
  chief.machine.collect(out);
  for (std::size_t at = 0; at < out.events.size(); ++at) {
    if (const auto* summed = std::get_if<RoundSummed>(&out.events[at])) {
      for (int32_t server = 0; server < setup_.servers; ++server) {
        if (summed->squares[static_cast<std::size_t>(server)] != payload_of(std::pair(summed->round, server))) {
          throw Wrong{"a round is decided before all servers gave their squares"};
        }
      }
      const int64_t round = summed->round;
      chief.machine.decide_round(round, 1, true, out);
      chief.machine.collect(out);
    }
  }
  observe(chief, before, out, report, result);
  result.node = chiefs_.number_of(chief);
  return result;
}

/// The report is taken as a step's end: has that attempt seen what it had to see?
inline void Cluster::check_pulls(ChiefNode& chief, const StepReport& report) const {
  if (!setup_.pulls || report.epoch != chief.machine.epoch() || report.outcome != StepOutcome::kDone) return;
  if (chief.fates.contains(report.step.step)) return;
  const auto given = chief.given.find(report.step.step);
  if (given == chief.given.end() || given->second != std::pair(report.step.attempt, report.from)) return;
  if (!chief.counts.contains(report.from)) return;  // it is given up, and what it says does not count
  if (report.pulled.size() != static_cast<std::size_t>(setup_.servers)) throw Wrong{"a pull is not recorded"};
  for (const PulledAt& pulled : report.pulled) {
    if (setup_.staleness == 0) {
      if (pulled.position < chief.last_round) throw Wrong{"a part of a round has not seen the round before"};
      continue;
    }
    const int64_t index = chief.counts.at(report.from);
    for (const ChiefNode::Commit& commit : chief.commits) {
      if (pulled.position >= commit.position) continue;
      if (commit.worker == report.from) throw Wrong{"a step has not seen an earlier one of its own worker"};
      if (setup_.staleness && commit.index < index - *setup_.staleness) {
        throw Wrong{"a step misses more of another worker than the bound allows"};
      }
    }
  }
}

/// Notes what the chief has decided and sent.
inline void Cluster::observe(ChiefNode& chief, Position before, const ChiefOutput& out, const StepReport* report,
                             Result& result) {
  using Kind = LogEntry::Kind;
  const uint64_t epoch = chief.machine.epoch();
  const auto decide = [&](int64_t step, bool counts, uint32_t attempt) {
    const auto [it, is_first] =
        chief.fates.try_emplace(step, Fate{.epoch = epoch, .counts = counts, .attempt = attempt});
    if (!is_first && it->second != Fate{.epoch = epoch, .counts = counts, .attempt = attempt}) {
      throw Wrong{"step " + std::to_string(step) + " is decided twice"};
    }
    if (counts && (!chief.given.contains(step) || chief.given.at(step).first != attempt)) {
      throw Wrong{"an attempt that was given up counts"};
    }
  };
  const auto& kept = chief.machine.log().kept();
  for (Position position = before; position < chief.machine.position(); ++position) {
    const LogEntry& entry = kept[kept.size() - static_cast<std::size_t>(chief.machine.position() - position)];
    if (entry.kind == Kind::kCommit) {
      if (report != nullptr && chief.given.at(entry.number).second != report->from) {
        throw Wrong{"the push of a worker that was given up counts"};
      }
      decide(entry.number, true, entry.attempt);
      if (setup_.staleness.value_or(1) > 0) count_commit(chief, chief.given.at(entry.number).second, position + 1);
    } else if (entry.kind == Kind::kClose) {
      decide(entry.number, false, 0);
    } else if (entry.kind == Kind::kPart) {
      chief.parts.push_back({.step = entry.number, .attempt = entry.attempt});
    } else if (entry.kind == Kind::kRound) {
      for (const StepAttempt& part : chief.parts) decide(part.step, entry.apply, entry.apply ? part.attempt : 0);
      chief.parts.clear();
      if (entry.apply) chief.last_round = position + 1;
    }
  }
  for (const ChiefEvent& event : out.events) {
    if (const auto* closed = std::get_if<StepClosed>(&event)) decide(closed->step, false, 0);
    if (const auto* counted = std::get_if<StepCounted>(&event)) {
      if (!chief.fates.contains(counted->step) || !chief.fates.at(counted->step).counts) {
        throw Wrong{"a step is said to count that is not in the log"};
      }
    }
    if (const auto* whole = std::get_if<CutWhole>(&event)) {
      Checkpoint checkpoint{.epoch = epoch, .chief = whole->chief};
      const std::set<int64_t> above = decided_above(whole->chief);
      for (const auto& [step, fate] : chief.fates) {
        if (step < whole->chief.floor || above.contains(step)) checkpoint.fates[step] = fate;
      }
      for (const Payload& saved : whole->saved) checkpoint.applied.push_back(opened<Applied>(saved));
      result.whole = std::move(checkpoint);
    }
  }
  for (const ToWorker& message : out.to_workers) {
    if (const auto* give = std::get_if<GiveStep>(&message.message)) {
      chief.given[give->step.step] = {give->step.attempt, give->to};
    }
    send(result, message);
  }
  for (const ToServer& message : out.to_servers) send(result, message);
}

inline void Cluster::count_commit(ChiefNode& chief, WorkerId worker, Position position) const {
  if (!setup_.pulls) return;
  const int64_t index = chief.counts.at(worker)++;
  for (const ChiefNode::Commit& commit : chief.commits) {
    if (setup_.staleness && commit.worker != worker && index < commit.index - *setup_.staleness) {
      throw Wrong{"a step has missed one of another worker that counts only now, and more than the bound allows"};
    }
  }
  chief.commits.push_back({.worker = worker, .index = index, .position = position});
}

// Servers and workers.

inline Cluster::Result Cluster::server_input(uint32_t number, const ServerMessage& message) {
  ServerNode node = servers_[number];
  ModelStore store(node);
  ServerOutput out;
  node.machine.receive(message, store, out);
  while (node.machine.has_entries()) node.machine.read_entry(store, out);
  // When it is written makes no difference: what was frozen is what the message has, which may be late.
  if (node.frozen) node.machine.saved(node.frozen->first, payload_of(node.frozen->second), out);
  node.frozen.reset();
  Result result;
  for (ToWorker& one : out.to_workers) send(result, std::move(one));
  for (ChiefMessage& one : out.to_chief) send(result, std::move(one));
  result.node = servers_.number_of(node);
  return result;
}

inline Cluster::Result Cluster::process_input(uint32_t number, const WorkerMessage& message) {
  ProcessNode node = processes_[number];
  WorkerOutput out;
  node.machine.receive(message, out);
  const auto push_and_end = [&] {
    std::vector<Payload> pushes;
    for (int32_t server = 0; server < setup_.servers; ++server) {
      pushes.push_back(payload_of(Pushed{.epoch = node.epoch, .step = *node.machine.at_hand(), .server = server}));
    }
    node.machine.push(std::move(pushes), out);
    node.machine.finish({.outcome = std::exchange(node.fails, false) ? StepOutcome::kFailed : StepOutcome::kDone}, out);
  };
  for (std::size_t at = 0; at < out.events.size(); ++at) {
    if (std::holds_alternative<StepBegins>(out.events[at])) {
      node.arrived = 0;
      if (!setup_.pulls) push_and_end();
      for (int32_t server = 0; server < setup_.servers && setup_.pulls; ++server) node.machine.pull(server, {}, out);
    } else if (std::holds_alternative<ValuesArrived>(out.events[at])) {
      if (++node.arrived == setup_.servers) push_and_end();
    }
  }
  Result result;
  for (ToServer& one : out.to_servers) send(result, std::move(one));
  for (ChiefMessage& one : out.to_chief) send(result, std::move(one));
  result.node = processes_.number_of(node);
  return result;
}

}  // namespace lockstep::internal::server
