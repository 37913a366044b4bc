// Schedules of learning rates where tasks are processes: a schedule is a function of the chief's program, so the chief
// tells the servers the rates that it gives.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/bytes.h"
#include "lockstep/optim/rules/schedule.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// What the chief tells. As long as no schedule is set or taken away inside coordinate(), nothing: each server follows
/// its own program's. Afterwards, for all optimizers whose schedules have changed, as many rates as the steps that are
/// scheduled can need, and more of them in time. An optimizer that was made later is the chief's alone.
class ToldRates {
 public:
  /// `are_known`: all tasks have the schedules that there are now.
  ToldRates(const Strategy& strategy, int64_t parts, bool are_known);

  /// Whether rates have to be told before so many steps are scheduled, all in all. Any thread.
  bool is_due(int64_t scheduled) const { return scheduled > enough_for_.load(); }
  /// Adds what the servers do not know to `bytes`, enough for so many scheduled steps. One thread at a time, which has
  /// the gate.
  void put(std::string& bytes, int64_t scheduled);

 private:
  struct Told {
    uint64_t version = 0;   // of the schedules that the servers follow
    bool by_rates = false;  // they follow rates that were told
    int64_t base = 0;       // applied steps, when nothing was scheduled
    int64_t first = 0;      // the rates that were told: of the steps from `first` to `end`
    int64_t end = 0;
  };

  const Strategy& strategy_;
  const int64_t parts_;
  std::map<std::string, Told> optimizers_;  // by name
  std::atomic<int64_t> enough_for_ = std::numeric_limits<int64_t>::max();
};

/// What a server does with it. While this lives, optimizers follow the rates that were told; then they have the
/// schedules of their own program again. Calls are made by a task of the run, which has the gate.
class FollowedRates {
 public:
  explicit FollowedRates(Strategy& strategy) : strategy_(strategy) {}
  ~FollowedRates();
  FollowedRates(const FollowedRates&) = delete;
  FollowedRates& operator=(const FollowedRates&) = delete;

  /// Takes what put() has added. A PeerError (LS-PEER-MESSAGE) where the bytes are something else.
  void take(MessageReader& from);

 private:
  struct Table;
  using Group = std::pair<std::string, int64_t>;  // of an optimizer

  Strategy& strategy_;
  std::map<Group, std::shared_ptr<Table>> tables_;
  std::map<Group, Schedule> own_;  // of the program, where others are followed
};

}  // namespace lockstep::internal::server
