// Workers of one process that meet over the loopback interface, for tests of how workers meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string_view>

#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/core/log.h"

namespace lockstep::internal {

/// No line is logged while it lives.
struct Quiet {
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink({}); }
};

/// Without a port: of worker 0, which then listens at any.
inline NetworkJob job_of(int64_t worker, int64_t workers, uint16_t port = 0) {
  return {.num_workers = workers,
          .worker_index = worker,
          .chief = {"127.0.0.1"},
          .chief_port = port,
          .own_address = "127.0.0.1",
          .secret = "a secret of the test",
          .must_match = "Lockstep 1\nbuild 1"};
}

/// A worker that meets the others on a thread of its own, and then leaves.
inline std::future<Members> meet(const NetworkJob& job, std::chrono::milliseconds join = std::chrono::seconds(60)) {
  return std::async(std::launch::async, [job, join] { return std::make_unique<NetworkRendezvous>(job)->meet(join); });
}

}  // namespace lockstep::internal
