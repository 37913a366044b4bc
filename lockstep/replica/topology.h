// The first of the four decisions that make a strategy: where its replicas run. The others are variable/placement.h,
// reduce/reducer.h and variable/synchronization.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// What a topology may look at.
struct Host {
  std::vector<int> cores;       // that this process may use, in ascending order; at least one
  int threads_per_replica = 1;  // how many of them a lane keeps busy
  int64_t local_worker = 0;     // how many workers of this host stand before this process
};

/// Where the replicas of this process run. A lane is a turn on the host's cores that at most one of its replicas holds
/// at a time. Lanes decide speed; the number of replicas decides results.
struct Lanes {
  std::vector<std::string> devices;          // one name for each lane, "cpu:K"; no two the same
  int64_t replicas = 0;                      // a multiple of the number of lanes, to which they are dealt in blocks
  std::vector<std::vector<int>> cores = {};  // for each lane, those that its threads are pinned to; empty: not pinned
  bool replicas_from_machine = false;        // nobody asked for this number of replicas: another machine gives another
};

/// Decides where replicas run.
class Topology {
 public:
  virtual ~Topology() = default;
  /// A function of `host` alone, called once, by the strategy's constructor, which refuses what breaks the rules of
  /// Lanes with a UsageError.
  virtual Lanes lanes(const Host& host) const = 0;
};

/// Lanes of one host's memory, as MirroredOptions describes them.
class HostTopology final : public Topology {
 public:
  /// Empty `devices`: as many lanes as cores, or, where `replicas` is given, the largest number up to that which
  /// divides it. `replicas` 0: one for each lane. Where `pinned`, lanes take the host's cores in turn, unless there are
  /// more lanes than cores. A UsageError for fewer than no replicas.
  explicit HostTopology(std::vector<std::string> devices = {}, int64_t replicas = 0, bool pinned = true);
  Lanes lanes(const Host& host) const override;

 private:
  std::vector<std::string> devices_;
  int64_t replicas_;
  bool pinned_;
};

}  // namespace lockstep
