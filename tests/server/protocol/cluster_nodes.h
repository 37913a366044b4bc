// One chief, servers and workers of a model of a cluster: the real machines, and beside each of them what an observer
// knows that sees everything.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/server/protocol/chief_collect-inl.h"
#include "lockstep/server/protocol/chief_machine-inl.h"
#include "lockstep/server/protocol/chief_tasks-inl.h"
#include "lockstep/server/protocol/server_machine-inl.h"
#include "lockstep/server/protocol/worker_machine-inl.h"
#include "tests/server/protocol/broken_rules.h"

namespace lockstep::internal::inline server {

/// A promise of the protocol does not hold.
struct Wrong {
  std::string what;
};

/// Values that are equal have one number, from 1. Values stay where they are.
template <class T>
class Interned {
 public:
  uint32_t number_of(const T& value) {
    const auto [it, is_new] = numbers_.try_emplace(value, static_cast<uint32_t>(values_.size() + 1));
    if (is_new) values_.push_back(&it->first);
    return it->second;
  }
  const T& operator[](uint32_t number) const { return *values_[number - 1]; }
  std::size_t size() const { return values_.size(); }

 private:
  std::map<T, uint32_t> numbers_;
  std::vector<const T*> values_;
};

/// What one attempt pushed to one server, or what was applied there.
struct Pushed {
  uint64_t epoch = 0;
  StepAttempt step = {};
  int32_t server = 0;
  auto operator<=>(const Pushed&) const = default;
};

/// A payload that is this value, and lives for ever.
template <class T>
Payload payload_of(const T& value) {
  static std::set<T> all;
  return {std::shared_ptr<const void>(), &*all.insert(value).first};
}
template <class T>
const T& opened(const Payload& payload) {
  return *static_cast<const T*>(payload.get());
}

using Applied = std::vector<Pushed>;

/// A server whose store is a list of what was applied.
struct ServerNode {
  BasicServerMachine<BrokenRules> machine;
  int32_t server = 0;
  Applied applied = {};
  std::map<StepAttempt, int> held = {};
  std::optional<std::pair<int64_t, Applied>> frozen = {};  // of the cut that is to be saved
  auto operator<=>(const ServerNode&) const = default;
};

/// The store of a ServerNode.
class ModelStore final : public ServerStore {
 public:
  explicit ModelStore(ServerNode& node) : node_(node) {}

  Payload hold(const HeldPush& push) override {
    int& times = node_.held[push.step];
    ++times;
    if (form == Form::kAppliedWhenPushed && times == 1) node_.applied.push_back(opened<Pushed>(push.push));
    return {};
  }
  void drop(const HeldPush& push) override { node_.held.erase(push.step); }
  void commit(const LogEntry& /*entry*/, const HeldPush& push) override { apply(push); }
  Payload squares(const LogEntry& entry, std::span<const HeldPush> parts) override {
    for (const HeldPush& part : parts) check(part);
    return payload_of(std::pair(entry.number, node_.server));
  }
  void round(const LogEntry& entry, std::span<const HeldPush> parts) override {
    for (const HeldPush& part : parts) {
      if (entry.apply) {
        apply(part);
      } else {
        node_.held.erase(part.step);
      }
    }
  }
  void change(const LogEntry& /*entry*/) override {}
  void freeze(const LogEntry& entry) override { node_.frozen = std::pair(entry.number, node_.applied); }
  void release(const LogEntry& /*entry*/) override {}
  Payload answer(const PullRequest& /*pull*/, Position /*position*/) override { return {}; }

 private:
  void check(const HeldPush& push) const {
    const Pushed& pushed = opened<Pushed>(push.push);
    if (pushed.step != push.step || pushed.server != node_.server) throw Wrong{"a push is held as another one"};
    if (node_.held.at(push.step) != 1) throw Wrong{"a push that came twice is added twice"};
  }
  void apply(const HeldPush& push) {
    check(push);
    node_.held.erase(push.step);
    if (form != Form::kAppliedWhenPushed) node_.applied.push_back(opened<Pushed>(push.push));
  }

  ServerNode& node_;
};

/// A worker's process. Its step's function pulls from all servers, if it pulls, and then pushes to all and returns.
struct ProcessNode {
  BasicWorkerMachine<BrokenRules> machine;
  uint64_t epoch = 0;
  bool has_crashed = false;
  int arrived = 0;     // answers to pulls
  bool fails = false;  // the step at hand will throw when it has pushed
  auto operator<=>(const ProcessNode&) const = default;
};

/// What became of a step, and in which epoch.
struct Fate {
  uint64_t epoch = 0;
  bool counts = false;
  uint32_t attempt = 0;
  auto operator<=>(const Fate&) const = default;
};

/// The chief, and what it has decided since the cluster was made.
struct ChiefNode {
  BasicChiefMachine<BrokenRules> machine;
  std::map<int64_t, Fate> fates = {};
  std::map<int64_t, std::pair<uint32_t, WorkerId>> given = {};  // the last attempt of this epoch, and to whom
  std::vector<StepAttempt> parts = {};                          // of the round that is being decided
  // Where the staleness is bounded: how many steps of a worker count, and where they do.
  struct Commit {
    WorkerId worker = {};
    int64_t index = 0;
    Position position = 0;
    auto operator<=>(const Commit&) const = default;
  };
  std::map<WorkerId, int64_t> counts = {};
  std::vector<Commit> commits = {};
  Position last_round = 0;
  int64_t cuts = 0;  // that were begun in this epoch
  auto operator<=>(const ChiefNode&) const = default;
};

/// What is on the disk: the last whole checkpoint, and one whose manifest is still missing.
struct Checkpoint {
  uint64_t epoch = 0;
  ChiefCut chief = {};
  std::map<int64_t, Fate> fates = {};
  std::vector<Applied> applied = {};  // by server
  auto operator<=>(const Checkpoint&) const = default;
};
struct Disk {
  std::optional<Checkpoint> saved = {};
  std::optional<Checkpoint> almost = {};  // of the chief of this epoch
  std::optional<Checkpoint> old = {};     // of a chief of an earlier epoch, which may wake
  auto operator<=>(const Disk&) const = default;
};

}  // namespace lockstep::internal::server
