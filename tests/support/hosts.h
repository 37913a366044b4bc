// Workers of a test that are on this machine, and say that they are on several hosts.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep::testing {

struct HostedWorker {
  /// By worker, a digit that names its host: "0011" are two hosts with two workers each.
  std::string hosts;
  int64_t worker = 0;
  /// Of worker 0, on 127.0.0.1.
  uint16_t port = 0;
  bool plaintext = false;
  WorkerTimeouts timeouts = {};
};

/// Joins as join() does for workers of several hosts.
std::shared_ptr<World> join_from_host(const HostedWorker& one);

}  // namespace lockstep::testing
