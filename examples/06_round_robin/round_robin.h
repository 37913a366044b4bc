// A user's strategy: variables lie on the strategy's devices in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

struct RoundRobinOptions {
  std::vector<std::string> devices = {"cpu:0", "cpu:1"};
  int64_t replicas = 2;
  uint64_t seed = 0;
};

// The one decision that is other than MirroredStrategy's: where a variable lives.
class RoundRobinPlacement final : public lockstep::Placement {
 public:
  std::string describe() const override { return "one copy for all replicas, on the devices in turn"; }

  // One copy, which all replicas use. It depends on nothing but the arguments, so every process of a run, and every run
  // of the program, puts the variable in the same place.
  std::vector<lockstep::VariableCopy> copies(const lockstep::NewVariable& variable,
                                             const lockstep::Lanes& lanes) const override {
    std::vector<int64_t> all_replicas(static_cast<std::size_t>(lanes.replicas));
    std::iota(all_replicas.begin(), all_replicas.end(), 0);
    const auto turn = static_cast<std::size_t>(variable.index) % lanes.devices.size();
    return {{.device = lanes.devices[turn], .replicas = all_replicas}};
  }
};

class RoundRobinStrategy final : public lockstep::Strategy {
 public:
  explicit RoundRobinStrategy(RoundRobinOptions options)
      : Strategy(lockstep::StrategySetup{
            .name = "RoundRobinStrategy",
            .topology = std::make_shared<lockstep::HostTopology>(options.devices, options.replicas),
            .placement = std::make_shared<RoundRobinPlacement>(),
            .seed = options.seed}) {}
};
