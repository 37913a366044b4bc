// A user's strategy: local SGD. Each replica trains its own weights, and every k-th step they become their
// mean.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

struct LocalSgdOptions {
  std::vector<std::string> devices = {"cpu:0", "cpu:1"};
  int64_t replicas = 2;
  int64_t average_every = 8;  // steps; at least 1
  uint64_t seed = 0;
};

// When replicas' parameters meet: a module's trainable parameters are trained locally, one component for each replica,
// and become their mean after every k-th step. Anything else is what it is under MirroredStrategy.
class LocalSgdSynchronization final : public lockstep::Synchronization {
 public:
  explicit LocalSgdSynchronization(int64_t average_every) : average_every_(average_every) {
    if (average_every < 1) {
      throw lockstep::UsageError(
          "LocalSgdStrategy was asked to average every " + std::to_string(average_every) + " steps",
          "set .average_every to 1 or more");
    }
  }
  std::string describe() const override { return "as their mean, every " + std::to_string(average_every_) + " steps"; }
  bool trains_locally(const lockstep::NewVariable& variable) const override {
    return variable.parameter && variable.trainable;
  }
  bool averages_after(int64_t steps) const override { return steps % average_every_ == 0; }

 private:
  const int64_t average_every_;
};

class LocalSgdStrategy final : public lockstep::Strategy {
 public:
  explicit LocalSgdStrategy(LocalSgdOptions options)
      : Strategy(lockstep::StrategySetup{
            .name = "LocalSgdStrategy",
            .topology = std::make_shared<lockstep::HostTopology>(options.devices, options.replicas),
            .synchronization = std::make_shared<LocalSgdSynchronization>(options.average_every),
            .seed = options.seed}) {}
};
