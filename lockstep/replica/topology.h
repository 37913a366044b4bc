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
  int64_t num_workers = 1;      // of the run; replicas of the whole run are dealt to them in blocks
  int64_t worker_index = 0;     // of this process
  int64_t cpu_quota = 0;        // how many cores' worth of time a control group grants this process; 0: no limit
  int64_t first_core = 0;  // the index in `cores` at which lanes should begin: strategies that live hold those before

  /// How many lanes' or threads' worth of work this process can do at a time; at least one.
  int64_t available_cores() const {
    const auto all = static_cast<int64_t>(cores.size());
    return cpu_quota > 0 && cpu_quota < all ? cpu_quota : all;
  }
};

/// Where the replicas of this process run; with several workers each has a block of the run's replicas, and blocks
/// differ by at most one, the first ones being the larger. A lane is a turn on the host's cores that at most one of its
/// replicas holds at a time. Lanes decide speed; the number of replicas decides results.
struct Lanes {
  std::vector<std::string> devices;          // one name for each lane, "cpu:K"; no two the same
  int64_t replicas = 0;                      // at least one for each lane; dealt in blocks, the larger ones first
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
  /// `replicas` are those of the whole run, of which this process takes its block; 0: one for each lane. Empty
  /// `devices`: as many lanes as available cores, and at most as many as this process has replicas, where `replicas` is
  /// given. Where `pinned`, lanes take the host's cores in turn. They are not pinned where they need more cores
  /// than there are, or where a quota grants less than all of them: such cores belong to others as well. A UsageError
  /// for a negative number of replicas, and, from lanes(), for fewer replicas than workers.
  explicit HostTopology(std::vector<std::string> devices = {}, int64_t replicas = 0, bool pinned = true);
  Lanes lanes(const Host& host) const override;

 private:
  std::vector<std::string> devices_;
  int64_t replicas_;
  bool pinned_;
};

}  // namespace lockstep
