// What each ClusterSpec that was accepted must keep.
#pragma once

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/cluster_spec.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

inline void check_spec(const ClusterSpec& spec) {
  spec.validate();
  check(spec.num_workers() >= 1, "there is a worker");
  if (spec.job == "ps") return;
  check(spec.worker_index() >= 0 && spec.worker_index() < spec.num_workers(), "the index is of a worker");
  check(spec.is_chief() == (spec.worker_index() == 0), "worker 0 is the chief");
  if (spec.is_chief() && spec.job != "evaluator")
    check(spec.address() == spec.chief_address(), "the chief is the chief");
  for (const auto& [job, addresses] : spec.jobs) {
    for (const std::string& address : addresses) {
      if (address.empty()) continue;
      check(internal::to_string(internal::parse_address({"an address", address})) == address,
            "addresses are canonical");
    }
  }
}

}  // namespace lockstep::fuzz
