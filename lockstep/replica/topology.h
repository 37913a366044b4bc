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
  int64_t local_worker = 0;     // how many workers of this host come before this process
  int64_t num_workers = 1;      // of the run; replicas of the whole run are dealt to them in blocks
  int64_t worker_index = 0;     // of this process
  int64_t cpu_quota = 0;        // how many cores' worth of time a control group grants this process; 0: no limit
  int64_t first_core = 0;  // where in `cores` lanes should begin: the first core to which the fewest lanes are pinned

  /// How many lanes or threads this process can keep busy at a time; at least one.
  int64_t available_cores() const {
    const auto all = static_cast<int64_t>(cores.size());
    return cpu_quota > 0 && cpu_quota < all ? cpu_quota : all;
  }
};

/// Where the replicas of this process run. With several workers each has a block of the run's replicas; the sizes of
/// the blocks differ by at most one, and the larger blocks come first. A lane is a turn on the host's cores that at
/// most one of its replicas holds at a time. Lanes decide speed; the number of replicas decides results.
struct Lanes {
  std::vector<std::string> devices;          // one name for each lane, "cpu:K"; no two the same
  int64_t replicas = 0;                      // at least one for each lane; dealt in blocks, the larger ones first
  std::vector<std::vector<int>> cores = {};  // cores that each lane's threads are pinned to; empty: not pinned
  bool replicas_from_machine = false;        // the number of replicas comes from the machine, not from the program
};

/// Decides where replicas run.
class Topology {
 public:
  virtual ~Topology() = default;
  /// Must be a function of `host` alone. The strategy's constructor calls it once, and throws a UsageError where the
  /// result breaks the rules of Lanes.
  virtual Lanes lanes(const Host& host) const = 0;
};

/// The lanes of one host, as MirroredOptions describes them.
class HostTopology final : public Topology {
 public:
  /// `replicas` are those of the whole run, of which this process takes its block; 0 means one for each lane. Without
  /// `devices` there are as many lanes as available cores, and at most as many as this process has replicas, where
  /// `replicas` is given. Where `pinned`, lanes take the host's cores in turn. They are not pinned where they need more
  /// cores than there are, or where a quota grants less than all of them, because other programs then use these cores
  /// as well. Throws a UsageError for a negative number of replicas; lanes() throws one for fewer replicas than
  /// workers.
  explicit HostTopology(std::vector<std::string> devices = {}, int64_t replicas = 0, bool pinned = true);
  Lanes lanes(const Host& host) const override;

 private:
  std::vector<std::string> devices_;
  int64_t replicas_;
  bool pinned_;
};

}  // namespace lockstep
