// A whole cluster as a value, everything that can happen to it next, and what must hold: for searches over all orders
// of events. The network keeps what was sent, so that each message may arrive at any time, any number of times, or
// never.
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

#include "tests/server/protocol/cluster_nodes.h"

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
  bool slow_notices =
      false;  // a death may be noticed later; otherwise a worker that is not heard stands for a dead one
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
    int32_t server = -1;  // to which it goes
    bool to_worker = false;
    std::optional<WorkerId> worker = {};      // who sent it or gets it
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
    state.servers[at] =
        servers_.number_of({.machine = BasicServerMachine<BrokenRules>(epoch, server, from.chief.position,
                                                                       from.chief.floor, decided_above(from.chief)),
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
  state.processes.push_back(
      processes_.number_of({.machine = BasicWorkerMachine<BrokenRules>(epoch, id, setup_.servers), .epoch = epoch}));
}

}  // namespace lockstep::internal::server
