// The processor cores of this process: which ones it may use, how much of them, and which ones its strategies hold.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/replica/topology.h"

namespace lockstep::internal::inline replica {

/// The cores that this process may use, in ascending order; at least one. They are the affinity of the main thread, as
/// the user or the system set it. Where a run in progress holds that thread on one lane's core, or OpenMP has bound it
/// to its first place (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), it is the affinity from before.
std::vector<int> cores_of_this_process();

/// The cores behind an affinity `mask`, where OpenMP has the `places`, each a set of cores. OpenMP binds the main
/// thread to its first place when it is loaded. So where `mask` is that of the first place, these are the cores of all
/// places; otherwise they are those of `mask`.
std::vector<int> cores_without_binding(std::vector<int> mask, const std::vector<std::vector<int>>& places);

/// How many cores' worth of time the control groups of this process grant it, rounded up; nothing where there is no
/// quota. /proc and /sys are looked for below `root`, which is another folder in tests.
std::optional<int64_t> cpu_quota(const std::string& root = "");

/// What a topology may know of this process.
Host this_host();

/// Keeps the affinity that a thread had before the library narrowed it, for as long as it is narrow. Where several of
/// these live for one thread, the first one counts.
class WideAffinity {
 public:
  /// `before` is the affinity of the calling thread.
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

/// Sets the calling thread's affinity; returns whether the system allowed it.
bool set_affinity_of_this_thread(const std::vector<int>& cores);

}  // namespace lockstep::internal::replica
