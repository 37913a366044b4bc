// The processor cores of this process: which ones it may use, how much of them, and which ones its strategies hold.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/replica/topology.h"

namespace lockstep::internal {

/// The cores that this process may use, in ascending order; at least one. It is the affinity of the main thread, as the
/// user or the system set it: where a run in progress holds that thread on one lane's core, or OpenMP has bound it to
/// its first place (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), the affinity from before.
std::vector<int> cores_of_this_process();

/// The cores behind an affinity `mask`, where OpenMP has the `places`, each a set of cores: those of all places where
/// the mask is that of the first place, to which OpenMP binds the main thread as it is loaded; otherwise the mask.
std::vector<int> cores_without_binding(std::vector<int> mask, const std::vector<std::vector<int>>& places);

/// How many cores' worth of time the control groups of this process grant it, rounded up; none where there is no quota.
/// `root` is where /proc and /sys are looked for: another folder in tests.
std::optional<int64_t> cpu_quota(const std::string& root = "");

/// What a topology is told of this process.
Host this_host();

/// The affinity that a thread had before the library narrowed it, for as long as it is narrow. Of several that are
/// alive for one thread the first one counts.
class WideAffinity {
 public:
  /// Of the calling thread.
  explicit WideAffinity(const cpu_set_t& before);
  ~WideAffinity();
  WideAffinity(const WideAffinity&) = delete;
  WideAffinity& operator=(const WideAffinity&) = delete;

 private:
  bool first_ = false;
};

/// Notes that lanes are pinned to these cores, so that the next strategy of this process begins at others.
class CoreHold {
 public:
  explicit CoreHold(std::vector<std::vector<int>> cores);
  ~CoreHold();
  CoreHold(const CoreHold&) = delete;
  CoreHold& operator=(const CoreHold&) = delete;

 private:
  const std::vector<std::vector<int>> cores_;
};

/// Sets the calling thread's affinity; gives whether the system did.
bool set_affinity_of_this_thread(const std::vector<int>& cores);

}  // namespace lockstep::internal
