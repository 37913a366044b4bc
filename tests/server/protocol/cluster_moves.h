// What can happen to a Cluster next, and what must hold in each of its states.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "tests/server/protocol/cluster_inputs.h"

namespace lockstep::internal::inline server {

inline std::vector<Move> Cluster::moves(const State& state) const {
  using Kind = Move::Kind;
  std::vector<Move> moves;
  const ChiefNode& chief = chiefs_[state.chief];
  const uint64_t epoch = chief.machine.epoch();
  for (const uint32_t message : state.net) {
    const About& about = about_[message - 1];
    bool must = about.epoch == epoch;
    if (about.worker) {
      const auto place = place_of(state, about.epoch, *about.worker);
      must = must && place && !processes_[state.processes[*place]].has_crashed &&
             is_current(state, processes_[state.processes[*place]]);
    }
    moves.push_back({.kind = Kind::kDeliver, .what = message, .must = must});
    if (form == Form::kWorkersCommit && about.is_done) {
      for (int32_t server = 0; server < setup_.servers; ++server) {
        moves.push_back({.kind = Kind::kWorkerCommit, .what = message, .server = server, .must = must});
      }
    }
  }
  std::vector<bool> is_there(static_cast<std::size_t>(setup_.workers));
  for (uint32_t place = 0; place < state.processes.size(); ++place) {
    const ProcessNode& process = processes_[state.processes[place]];
    if (!is_current(state, process)) continue;
    is_there[static_cast<std::size_t>(process.machine.id().worker)] = true;
    if (process.has_crashed) {
      moves.push_back({.kind = Kind::kNotice, .what = place, .must = true});
    } else {
      if (state.left[0] > 0 && setup_.slow_notices) moves.push_back({.kind = Kind::kCrash, .what = place});
      if (state.left[0] > 0) moves.push_back({.kind = Kind::kSuspect, .what = place});
      if (state.left[4] > 0 && !process.fails) moves.push_back({.kind = Kind::kWillFail, .what = place});
    }
  }
  const bool nobody = std::find(is_there.begin(), is_there.end(), true) == is_there.end();
  for (uint32_t worker = 0; worker < is_there.size(); ++worker) {
    if (!is_there[worker]) moves.push_back({.kind = Kind::kJoin, .what = worker, .must = nobody});
  }
  const Disk& disk = disks_[state.disk];
  if (state.left[2] > 0 && !chief.machine.is_cutting() && !disk.almost) moves.push_back({.kind = Kind::kCut});
  for (uint32_t server = 0; server < static_cast<uint32_t>(setup_.servers); ++server) {
    if (form == Form::kEachServerSavesWhenItLikes && chief.machine.is_cutting()) {
      moves.push_back({.kind = Kind::kSave, .what = server, .must = true});
    }
    if (setup_.reads) moves.push_back({.kind = Kind::kRead, .what = server});
  }
  if (disk.almost) moves.push_back({.kind = Kind::kManifest, .must = true});
  if (disk.old && BrokenRules::may_complete_checkpoint(epoch, disk.old->epoch)) {
    moves.push_back({.kind = Kind::kOldManifest});
  }
  if (state.left[3] > 0) moves.push_back({.kind = Kind::kCancel});
  if (state.left[1] > 0) moves.push_back({.kind = Kind::kRestart});
  return moves;
}

/// The chief's new state and what it sends.
inline void Cluster::take(State& state, const Result& result) {
  state.chief = result.node;
  put(state, result.messages);
  if (!result.whole) return;
  Disk disk = disks_[state.disk];
  // The time of the manifest makes a difference only where the chief may die before.
  (setup_.crashes > 0 ? disk.almost : disk.saved) = result.whole;
  state.disk = disks_.number_of(disk);
}

inline std::optional<State> Cluster::deliver(const State& state, uint32_t number) {
  const About about = about_[number - 1];
  const auto key = [&](uint32_t node) { return uint64_t{node} << 32 | number; };
  const auto changes = [&](uint32_t node, const Result& result) {
    return node != result.node || result.whole ||
           !std::all_of(result.messages.begin(), result.messages.end(), [&](uint32_t message) {
             return std::binary_search(state.net.begin(), state.net.end(), message);
           });
  };
  std::optional<State> next;
  if (about.to_worker) {
    const auto place = place_of(state, about.epoch, *about.worker);
    if (!place || processes_[state.processes[*place]].has_crashed) return std::nullopt;
    const uint32_t node = state.processes[*place];
    auto it = process_results_.find(key(node));
    if (it == process_results_.end()) {
      it =
          process_results_.emplace(key(node), process_input(node, std::get<ToWorker>(messages_[number]).message)).first;
    }
    if (!changes(node, it->second)) return std::nullopt;
    next = state;
    next->processes[*place] = it->second.node;
    put(*next, it->second.messages);
  } else if (about.server >= 0) {
    const uint32_t node = state.servers[static_cast<std::size_t>(about.server)];
    auto it = server_results_.find(key(node));
    if (it == server_results_.end()) {
      it = server_results_.emplace(key(node), server_input(node, std::get<ToServer>(messages_[number]).message)).first;
    }
    if (!changes(node, it->second)) return std::nullopt;
    next = state;
    next->servers[static_cast<std::size_t>(about.server)] = it->second.node;
    put(*next, it->second.messages);
    if (about.is_pull && !setup_.repeats_pulls) std::erase(next->net, number);
  } else {
    auto it = chief_results_.find(key(state.chief));
    if (it == chief_results_.end()) {
      const ChiefMessage& message = std::get<ChiefMessage>(messages_[number]);
      const auto receive = [&](ChiefNode& chief, ChiefOutput& out) {
        chief.machine.receive(message, out);
        return std::get_if<StepReport>(&message);
      };
      it = chief_results_.emplace(key(state.chief), chief_input(state.chief, receive)).first;
    }
    if (!changes(state.chief, it->second)) return std::nullopt;
    next = state;
    take(*next, it->second);
  }
  return next;
}

inline void Cluster::deliver_quick_ones(State& state) {
  const auto is_quick = [&](uint32_t message) { return about_[message - 1].to_worker || about_[message - 1].is_saved; };
  while (true) {
    const auto it = std::find_if(state.net.begin(), state.net.end(), is_quick);
    if (it == state.net.end()) return;
    const uint32_t message = *it;
    auto next = deliver(state, message);
    if (next) state = std::move(*next);
    std::erase(state.net, message);
    tidy(state);
  }
}

inline std::optional<State> Cluster::after(const State& state, const Move& move) {
  using Kind = Move::Kind;
  constexpr const StepReport* no_report = nullptr;
  std::optional<State> next = state;
  const auto process = [&](uint32_t place) { return processes_[state.processes[place]]; };
  const auto lose = [&](WorkerId id) {
    take(*next, chief_input(state.chief, [&](ChiefNode& chief, ChiefOutput& out) {
      chief.machine.worker_lost(id, out);
      chief.counts.erase(id);
      return no_report;
    }));
  };
  switch (move.kind) {
    case Kind::kDeliver:
      next = deliver(state, move.what);
      if (!next) return std::nullopt;
      break;
    case Kind::kCrash: {
      --next->left[0];
      ProcessNode crashed = process(move.what);
      crashed.has_crashed = true;
      next->processes[move.what] = processes_.number_of(crashed);
      break;
    }
    case Kind::kSuspect:
      --next->left[0];
      lose(process(move.what).machine.id());
      break;
    case Kind::kNotice: lose(process(move.what).machine.id()); break;
    case Kind::kJoin: {
      WorkerId id{.worker = static_cast<int32_t>(move.what)};
      take(*next, chief_input(state.chief, [&](ChiefNode& chief, ChiefOutput& out) {
        // Who joins begins at the lowest count of those alive.
        int64_t lowest = chief.counts.empty() ? 0 : chief.counts.begin()->second;
        for (const auto& [other, count] : chief.counts) lowest = std::min(lowest, count);
        id.incarnation = chief.machine.worker_joined(id.worker, out);
        chief.counts[id] = lowest;
        return no_report;
      }));
      add_process(*next, id, chiefs_[state.chief].machine.epoch());
      break;
    }
    case Kind::kWillFail: {
      --next->left[4];
      ProcessNode failing = process(move.what);
      failing.fails = true;
      next->processes[move.what] = processes_.number_of(failing);
      break;
    }
    case Kind::kCut:
      --next->left[2];
      take(*next, chief_input(state.chief, [&](ChiefNode& chief, ChiefOutput&) {
        chief.machine.begin_cut(++chief.cuts);
        return no_report;
      }));
      break;
    case Kind::kSave:
    case Kind::kRead: {
      ServerNode node = servers_[state.servers[move.what]];
      ServerOutput out;
      if (move.kind == Kind::kRead) {
        node.machine.report(out);
      } else {
        node.machine.saved(chiefs_[state.chief].cuts, payload_of(node.applied), out);
      }
      next->servers[move.what] = servers_.number_of(node);
      Result result;
      for (ChiefMessage& one : out.to_chief) send(result, std::move(one));
      put(*next, result.messages);
      break;
    }
    case Kind::kManifest:
    case Kind::kOldManifest: {
      Disk disk = disks_[state.disk];
      auto& complete = move.kind == Kind::kManifest ? disk.almost : disk.old;
      if (disk.saved && disk.saved->epoch > complete->epoch) {
        throw Wrong{"a chief of before has replaced a newer checkpoint"};
      }
      disk.saved = std::exchange(complete, std::nullopt);
      next->disk = disks_.number_of(disk);
      break;
    }
    case Kind::kCancel:
      --next->left[3];
      take(*next, chief_input(state.chief, [&](ChiefNode& chief, ChiefOutput& out) {
        chief.machine.cancel(out);
        return no_report;
      }));
      break;
    case Kind::kRestart: {
      --next->left[1];
      Disk disk = disks_[state.disk];
      if (disk.almost) disk.old = std::exchange(disk.almost, std::nullopt);
      if (form != Form::kNoClaim) disk.old.reset();
      next->disk = disks_.number_of(disk);
      const Checkpoint nothing{.applied = std::vector<Applied>(static_cast<std::size_t>(setup_.servers))};
      begin_epoch(*next, chiefs_[state.chief].machine.epoch() + 1, disk.saved ? *disk.saved : nothing);
      break;
    }
    case Kind::kWorkerCommit: {
      const StepReport& report = std::get<StepReport>(std::get<ChiefMessage>(messages_[move.what]));
      const auto at = static_cast<std::size_t>(move.server);
      const ServerNode& node = servers_[state.servers[at]];
      const auto is_it = [&](const Pushed& one) { return one.step.step == report.step.step; };
      if (std::any_of(node.applied.begin(), node.applied.end(), is_it)) return std::nullopt;
      const LogEntry commit{.attempt = report.step.attempt, .number = report.step.step};
      const Result result = server_input(
          state.servers[at], LogEntries{.epoch = report.epoch, .first = node.machine.position(), .entries = {commit}});
      next->servers[at] = result.node;
      put(*next, result.messages);
      break;
    }
  }
  tidy(*next);
  if (setup_.quick) deliver_quick_ones(*next);
  const bool is_same = next->chief == state.chief && next->servers == state.servers && next->disk == state.disk &&
                       next->left == state.left && next->processes == state.processes && next->net == state.net;
  return is_same ? std::nullopt : next;
}

// What must hold.

inline void Cluster::check(const State& state) {
  const auto is_new = [](auto& checked, uint32_t a, uint32_t b) {
    return checked.insert(uint64_t{a} << 32 | b).second;
  };
  const ChiefNode& chief = chiefs_[state.chief];
  for (std::size_t at = 0; at < static_cast<std::size_t>(setup_.servers); ++at) {
    const Applied& applied = servers_[state.servers[at]].applied;
    if (form != Form::kWorkersCommit && is_new(checked_chiefs_, state.chief, state.servers[at])) {
      std::set<int64_t> steps;
      for (const Pushed& one : applied) {
        if (!steps.insert(one.step.step).second) throw Wrong{"a server applied a step twice"};
        const auto fate = chief.fates.find(one.step.step);
        if (fate == chief.fates.end()) throw Wrong{"a server applied a step that nobody decided for"};
        if (fate->second != Fate{.epoch = one.epoch, .counts = true, .attempt = one.step.attempt}) {
          throw Wrong{"a server applied an attempt, or a push of an epoch, that the chief did not decide for"};
        }
      }
    }
    for (std::size_t other = 0; other < at; ++other) {
      if (!is_new(checked_servers_, state.servers[at], state.servers[other])) continue;
      const Applied& others = servers_[state.servers[other]].applied;
      for (std::size_t k = 0; k < std::min(applied.size(), others.size()); ++k) {
        if (applied[k].step != others[k].step || applied[k].epoch != others[k].epoch) {
          throw Wrong{"two servers applied different attempts, or in different orders"};
        }
      }
    }
  }
  if (!checked_disks_.insert(state.disk).second) return;
  const Disk& disk = disks_[state.disk];
  if (!disk.saved) return;
  std::set<int64_t> counted;
  for (const auto& [step, fate] : disk.saved->fates) {
    if (fate.counts) counted.insert(step);
  }
  if (static_cast<int64_t>(counted.size()) != disk.saved->chief.counted) throw Wrong{"a checkpoint counts wrongly"};
  for (const Applied& applied : disk.saved->applied) {
    std::set<int64_t> steps;
    for (const Pushed& one : applied) steps.insert(one.step.step);
    if (steps != counted) throw Wrong{"a checkpoint is no cut"};
  }
}

inline bool Cluster::is_finished(const State& state) const {
  const ChiefNode& chief = chiefs_[state.chief];
  for (int64_t step = 0; step < setup_.steps; ++step) {
    if (!chief.fates.contains(step)) return false;
  }
  for (std::size_t at = 0; at < static_cast<std::size_t>(setup_.servers); ++at) {
    const ServerNode& node = servers_[state.servers[at]];
    if (node.machine.position() != chief.machine.position()) return false;
  }
  for (const uint32_t number : state.processes) {
    const ProcessNode& process = processes_[number];
    if (is_current(state, process) && process.machine.at_hand()) return false;
  }
  return !chief.machine.is_cutting() && !disks_[state.disk].almost;
}

inline void Cluster::check_end(const State& state) const {
  const ChiefNode& chief = chiefs_[state.chief];
  int64_t counted = 0;
  for (const auto& [step, fate] : chief.fates) counted += fate.counts;
  if (chief.machine.steps() != counted) throw Wrong{"at the end the chief's number of steps is wrong"};
  for (std::size_t at = 0; at < static_cast<std::size_t>(setup_.servers); ++at) {
    const ServerNode& node = servers_[state.servers[at]];
    if (static_cast<int64_t>(node.applied.size()) != counted) throw Wrong{"at the end a step is not on all servers"};
    if (node.machine.num_held() != 0 || !node.held.empty()) throw Wrong{"at the end a push is held for good"};
    if (node.machine.num_waiting_pulls() != 0) throw Wrong{"at the end a pull waits for good"};
  }
}

inline std::string Cluster::describe(const State& state, const Move& move) const {
  static constexpr std::array names{"deliver",   "crash",   "suspect", "notice",        "join",
                                    "will fail", "cut",     "save",    "manifest",      "old manifest",
                                    "cancel",    "restart", "read",    "worker commits"};
  std::string text = names[static_cast<std::size_t>(move.kind)];
  const auto of = [](StepAttempt step) { return std::to_string(step.step) + "." + std::to_string(step.attempt); };
  const auto who = [](WorkerId id) { return std::to_string(id.worker) + "#" + std::to_string(id.incarnation); };
  if (move.kind != Move::Kind::kDeliver) return text + " " + std::to_string(move.what);
  const Wire& wire = messages_[move.what];
  if (about_[move.what - 1].epoch != chiefs_[state.chief].machine.epoch()) text += " of before";
  if (const auto* to_server = std::get_if<ToServer>(&wire)) {
    const std::string to = " to server " + std::to_string(to_server->server);
    if (const auto* push = std::get_if<PushRequest>(&to_server->message)) {
      return text + " push " + of(push->step) + " of " + who(push->from) + to;
    }
    if (const auto* pull = std::get_if<PullRequest>(&to_server->message)) {
      return text + " pull " + of(pull->step) + " of " + who(pull->from) + to + " at " + std::to_string(pull->position);
    }
    const LogEntries& log = std::get<LogEntries>(to_server->message);
    return text + " entries " + std::to_string(log.first) + ".." + std::to_string(log.first + log.entries.size()) + to;
  }
  if (const auto* to_worker = std::get_if<ToWorker>(&wire)) {
    const std::string to = " to " + who(to_worker->worker);
    if (const auto* give = std::get_if<GiveStep>(&to_worker->message)) return text + " give " + of(give->step) + to;
    if (const auto* answer = std::get_if<PushAnswer>(&to_worker->message)) {
      return text + " answer " + of(answer->step) + " of server " + std::to_string(answer->server) + to;
    }
    if (const auto* values = std::get_if<PulledValues>(&to_worker->message)) {
      return text + " values " + of(values->step) + " at " + std::to_string(values->position) + " of server " +
             std::to_string(values->server) + to;
    }
    return text + " message " + std::to_string(to_worker->message.index()) + to;
  }
  const ChiefMessage& to_chief = std::get<ChiefMessage>(wire);
  if (const auto* report = std::get_if<StepReport>(&to_chief)) {
    return text + " report " + of(report->step) + " of " + who(report->from);
  }
  return text + " message " + std::to_string(to_chief.index()) + " to the chief";
}

}  // namespace lockstep::internal::server
