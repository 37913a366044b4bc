// A whole cluster as a value, everything that can happen to it next, and what must hold: for searches over all orders of
// events. The network keeps what was sent, so that each message may arrive at any time, any number of times, or never.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/server/cluster_nodes.h"

namespace lockstep::internal::inline server {

/// The size of a cluster, and how often what may go wrong happens.
struct Setup {
  int64_t steps = 2;
  int32_t servers = 2;
  int32_t workers = 2;
  std::optional<int64_t> staleness = {};
  bool squares = false;
  uint32_t window = 1;
  bool pulls = false;          // steps pull before they push
  bool repeats_pulls = false;  // pulls come again too
  bool keeps_old = false;      // messages and processes of earlier epochs are not forgotten
  bool reads = false;          // servers report how far they have read
  bool slow_notices = false;   // a death may be noticed later; otherwise a worker that is not heard stands for a dead one
  // Messages to workers, and of servers that they have saved, arrive at once. Nothing is lost by that: what a worker
  // sends upon them may still be late, and what the chief is told of a cut changes nothing but that cut.
  bool quick = false;
  int deaths = 0;
  int crashes = 0;  // of a server or of the chief: all begin again
  int cuts = 0;
  int cancels = 0;
  int failures = 0;  // steps that throw
};

/// Numbers of interned values; 0 is none.
struct State {
  uint32_t chief = 0;
  std::array<uint32_t, 3> servers = {};
  uint32_t disk = 0;
  std::array<uint8_t, 5> left = {};  // deaths, crashes, cuts, cancels, failures that may still come
  std::vector<uint32_t> processes = {};
  std::vector<uint32_t> net = {};  // sorted
};

struct Move {
  enum class Kind : uint8_t {
    kDeliver,       // message `what`
    kCrash,         // the process in place `what` dies
    kSuspect,       // the chief takes it for dead, but it goes on
    kNotice,        // the chief notices that it is dead
    kJoin,          // a new process joins as worker `what`
    kWillFail,      // the next step of the process in place `what` will throw
    kCut,           // the chief begins a cut
    kSave,          // a broken form: server `what` writes its part
    kManifest,      // the chief writes the manifest
    kOldManifest,   // a chief of an earlier epoch does
    kCancel,        // the program cancels all steps
    kRestart,       // a server or the chief dies: all begin again from the last whole checkpoint
    kRead,          // server `what` reports how far it has read
    kWorkerCommit,  // a broken form: server `server` commits, because report `what` says so
  };
  Kind kind = Kind::kDeliver;
  uint32_t what = 0;
  int32_t server = 0;
  bool must = false;  // it happens in the end, unless something else makes it needless
};

class Cluster {
 public:
  explicit Cluster(const Setup& setup) : setup_(setup) {}

  State first() {
    State state{.left = {static_cast<uint8_t>(setup_.deaths), static_cast<uint8_t>(setup_.crashes),
                         static_cast<uint8_t>(setup_.cuts), static_cast<uint8_t>(setup_.cancels),
                         static_cast<uint8_t>(setup_.failures)}};
    state.disk = disks_.number_of({});
    begin_epoch(state, 1, Checkpoint{.applied = std::vector<Applied>(static_cast<std::size_t>(setup_.servers))});
    return state;
  }

  std::vector<Move> moves(const State& state) const;
  /// The state after the move; nothing where it changes nothing.
  std::optional<State> after(const State& state, const Move& move);
  /// Throws Wrong.
  void check(const State& state);
  bool is_finished(const State& state) const;
  void check_end(const State& state) const;
  std::string describe(const State& state, const Move& move) const;

  std::size_t num_chiefs() const { return chiefs_.size(); }
  std::size_t num_servers() const { return servers_.size(); }
  std::size_t num_processes() const { return processes_.size(); }

 private:
  using Wire = std::variant<ChiefMessage, ToServer, ToWorker>;
  /// What is asked of a message often.
  struct About {
    uint64_t epoch = 0;
    int32_t server = -1;                   // to which it goes
    bool to_worker = false;
    std::optional<WorkerId> worker = {};   // who sent it or gets it
    std::optional<StepAttempt> answers = {};  // to a worker: of no use once that step is not at hand
    bool is_pull = false;
    bool is_done = false;
    bool is_log = false;
    bool is_saved = false;
    bool is_acknowledgement = false;
  };
  /// A node after an input, and what it sent.
  struct Result {
    uint32_t node = 0;
    std::vector<uint32_t> messages = {};
    std::optional<Checkpoint> whole = {};
  };

  ChiefOptions options() const {
    return {.workers = setup_.workers,
            .servers = setup_.servers,
            .staleness = setup_.staleness,
            .squares = setup_.squares,
            .attempts = 100,
            .window = setup_.window};
  }
  uint32_t intern(Wire message);
  static About about(const Wire& message);

  void begin_epoch(State& state, uint64_t epoch, const Checkpoint& from);
  void add_process(State& state, WorkerId id, uint64_t epoch);
  void put(State& state, const std::vector<uint32_t>& messages) const;
  void tidy(State& state) const;
  std::optional<std::size_t> place_of(const State& state, uint64_t epoch, WorkerId id) const;
  bool is_current(const State& state, const ProcessNode& process) const {
    const auto& chief = chiefs_[state.chief].machine;
    return process.epoch == chief.epoch() && chief.is_alive(process.machine.id());
  }

  template <class Input>
  Result chief_input(uint32_t node, const Input& input);
  void observe(ChiefNode& chief, Position before, const ChiefOutput& out, const StepReport* report, Result& result);
  void check_pulls(ChiefNode& chief, const StepReport& report) const;
  void count_commit(ChiefNode& chief, WorkerId worker, Position position) const;
  Result server_input(uint32_t node, const ServerMessage& message);
  Result process_input(uint32_t node, const WorkerMessage& message);
  std::optional<State> deliver(const State& state, uint32_t message);
  void deliver_quick_ones(State& state);
  void take(State& state, const Result& result);  // of the chief
  void send(Result& result, Wire message) { result.messages.push_back(intern(std::move(message))); }

  Setup setup_;
  Interned<ChiefNode> chiefs_;
  Interned<ServerNode> servers_;
  Interned<ProcessNode> processes_;
  Interned<Disk> disks_;
  Interned<Wire> messages_;
  std::vector<About> about_;
  std::unordered_map<uint64_t, Result> chief_results_, server_results_, process_results_;
  std::unordered_set<uint64_t> checked_chiefs_, checked_servers_;
  std::unordered_set<uint32_t> checked_disks_;
};

// Messages.

inline Cluster::About Cluster::about(const Wire& wire) {
  About about;
  if (const auto* to_chief = std::get_if<ChiefMessage>(&wire)) {
    std::visit([&](const auto& one) { about.epoch = one.epoch; }, *to_chief);
    if (const auto* report = std::get_if<StepReport>(to_chief)) {
      about.worker = report->from;
      about.is_done = report->outcome == StepOutcome::kDone;
    }
    about.is_saved = std::holds_alternative<CutSaved>(*to_chief);
  } else if (const auto* to_server = std::get_if<ToServer>(&wire)) {
    about.server = to_server->server;
    std::visit([&](const auto& one) { about.epoch = one.epoch; }, to_server->message);
    about.is_log = std::holds_alternative<LogEntries>(to_server->message);
    if (const auto* pull = std::get_if<PullRequest>(&to_server->message)) {
      about.worker = pull->from;
      about.is_pull = true;
    }
    if (const auto* push = std::get_if<PushRequest>(&to_server->message)) about.worker = push->from;
  } else {
    const ToWorker& to_worker = std::get<ToWorker>(wire);
    about.to_worker = true;
    about.worker = to_worker.worker;
    std::visit([&](const auto& one) { about.epoch = one.epoch; }, to_worker.message);
    if (const auto* values = std::get_if<PulledValues>(&to_worker.message)) about.answers = values->step;
    if (const auto* answer = std::get_if<PushAnswer>(&to_worker.message)) about.answers = answer->step;
    about.is_acknowledgement = std::holds_alternative<ReportsNoted>(to_worker.message);
  }
  return about;
}

inline uint32_t Cluster::intern(Wire message) {
  const uint32_t number = messages_.number_of(message);
  if (number > about_.size()) about_.push_back(about(message));
  return number;
}

/// What was sent is in the network, unless nobody would ever take it.
inline void Cluster::put(State& state, const std::vector<uint32_t>& messages) const {
  for (const uint32_t message : messages) {
    const About& about = about_[message - 1];
    // Acknowledgements only free memory: they are lost here, and tested by themselves.
    if (about.is_acknowledgement || (about.is_log && form == Form::kWorkersCommit)) continue;
    const auto it = std::lower_bound(state.net.begin(), state.net.end(), message);
    if (it == state.net.end() || *it != message) state.net.insert(it, message);
  }
}

inline std::optional<std::size_t> Cluster::place_of(const State& state, uint64_t epoch, WorkerId id) const {
  for (std::size_t place = 0; place < state.processes.size(); ++place) {
    const ProcessNode& process = processes_[state.processes[place]];
    if (process.epoch == epoch && process.machine.id() == id) return place;
  }
  return std::nullopt;
}

/// Forgets processes that can do nothing any more, and messages that nobody can take.
inline void Cluster::tidy(State& state) const {
  const uint64_t epoch = chiefs_[state.chief].machine.epoch();
  std::erase_if(state.processes, [&](uint32_t number) {
    const ProcessNode& process = processes_[number];
    if (process.machine.is_replaced() || (process.epoch != epoch && !setup_.keeps_old)) return true;
    return !is_current(state, process) && (process.has_crashed || !process.machine.at_hand());
  });
  std::erase_if(state.net, [&](uint32_t message) {
    const About& about = about_[message - 1];
    if (about.epoch != epoch && !setup_.keeps_old) return true;
    if (!about.to_worker) return false;
    const auto place = place_of(state, about.epoch, *about.worker);
    return !place || (about.answers && processes_[state.processes[*place]].machine.at_hand() != about.answers);
  });
}

// Epochs.

inline void Cluster::begin_epoch(State& state, uint64_t epoch, const Checkpoint& from) {
  ChiefNode chief{.machine = BasicChiefMachine<BrokenRules>(options(), epoch, from.chief), .fates = from.fates};
  ChiefOutput joined;
  Result result;
  for (int32_t worker = 0; worker < setup_.workers; ++worker) {
    chief.counts[{.worker = worker, .incarnation = chief.machine.worker_joined(worker, joined)}] = 0;
  }
  const auto decided = static_cast<int64_t>(from.fates.size());
  for (int64_t step = decided; step < setup_.steps; ++step) chief.machine.schedule({});
  chief.machine.complete_round();
  ChiefOutput out;
  const Position before = chief.machine.position();
  chief.machine.collect(out);
  observe(chief, before, out, nullptr, result);
  for (int32_t server = 0; server < setup_.servers; ++server) {
    const auto at = static_cast<std::size_t>(server);
    state.servers[at] = servers_.number_of(
        {.machine = BasicServerMachine<BrokenRules>(epoch, server, from.chief.position, from.chief.floor,
                                                    decided_above(from.chief)),
         .server = server,
         .applied = from.applied[at]});
  }
  state.chief = chiefs_.number_of(chief);
  for (const auto& [id, count] : chief.counts) add_process(state, id, epoch);
  put(state, result.messages);
  tidy(state);
  if (setup_.quick) deliver_quick_ones(state);
}

inline void Cluster::add_process(State& state, WorkerId id, uint64_t epoch) {
  state.processes.push_back(processes_.number_of(
      {.machine = BasicWorkerMachine<BrokenRules>(epoch, id, setup_.servers), .epoch = epoch}));
}

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
  if (!setup_.pulls || report.outcome != StepOutcome::kDone || chief.fates.contains(report.step.step)) return;
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
    const auto [it, is_first] = chief.fates.try_emplace(step, Fate{.epoch = epoch, .counts = counts, .attempt = attempt});
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
      pushes.push_back(
          payload_of(Pushed{.epoch = node.epoch, .step = *node.machine.at_hand(), .server = server}));
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
