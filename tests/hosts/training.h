// What a worker of scripts/test-hosts trains, where it does not only make calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/world.h"

/// Four replicas of all workers, whose every step takes some milliseconds. Its bits are those of one worker.
class HostsTraining {
 public:
  static constexpr int64_t kReplicas = 4;

  /// Null trains alone.
  explicit HostsTraining(std::shared_ptr<lockstep::World> world);
  ~HostsTraining();
  HostsTraining(const HostsTraining&) = delete;
  HostsTraining& operator=(const HostsTraining&) = delete;

  /// Returns whether a worker has been told to stop, on all workers after the same step. Throws the error of a worker
  /// itself in place of the ReplicaError that is nested on it.
  bool step();
  /// Of weights and slots. Calls no other worker.
  std::string digest() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};
