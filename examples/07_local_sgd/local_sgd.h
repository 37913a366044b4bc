// A user's strategy: local SGD. Each replica trains its own weights, and every k-th step they become their
// mean.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

struct LocalSgdOptions {
  std::vector<std::string> devices = {"cpu:0", "cpu:1"};
  int64_t replicas = 2;
  int64_t average_every = 8;  // steps; at least 1
  uint64_t seed = 0;
};

// Where a variable lives: a module's trainable parameters are trained apart, one component for each replica. Anything
// else is what it is under MirroredStrategy.
class LocalSgdPlacement final : public lockstep::Placement {
 public:
  std::string describe() const override { return "parameters trained apart, others in one copy for all replicas"; }
  bool trains_apart(const lockstep::NewVariable& variable) const override {
    return variable.parameter && variable.trainable;
  }
  std::vector<lockstep::VariableCopy> copies(const lockstep::NewVariable& variable,
                                             const lockstep::Lanes& lanes) const override {
    return others_.copies(variable, lanes);
  }

 private:
  lockstep::OneCopyPlacement others_;
};

// How values are added across replicas: in tree order, as everywhere in Lockstep, so that results do not depend on
// lanes. And when replicas' weights become their mean.
class LocalSgdReducer final : public lockstep::Reducer {
 public:
  explicit LocalSgdReducer(int64_t average_every) : average_every_(average_every) {
    if (average_every < 1) {
      throw lockstep::UsageError(
          "LocalSgdStrategy was asked to average every " + std::to_string(average_every) + " steps",
          "set .average_every to 1 or more");
    }
  }
  std::string describe() const override {
    return tree_.describe() + "; weights become their mean every " + std::to_string(average_every_) + " steps";
  }
  at::Tensor reduce(lockstep::Reduction reduction, std::span<const at::Tensor> values) const override {
    return tree_.reduce(reduction, values);
  }
  bool averages_after(int64_t steps) const override { return steps % average_every_ == 0; }

 private:
  const int64_t average_every_;
  lockstep::TreeReducer tree_;
};

class LocalSgdStrategy final : public lockstep::Strategy {
 public:
  explicit LocalSgdStrategy(LocalSgdOptions options)
      : Strategy(lockstep::StrategySetup{
            .name = "LocalSgdStrategy",
            .topology = std::make_shared<lockstep::HostTopology>(options.devices, options.replicas),
            .placement = std::make_shared<LocalSgdPlacement>(),
            .reducer = std::make_shared<LocalSgdReducer>(options.average_every),
            .seed = options.seed}) {}
};
