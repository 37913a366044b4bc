// Strategies whose decisions are a program's own.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

struct OwnReducer : Reducer {
  std::string describe() const override { return "by a reducer of the program's own"; }
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const override {
    return tree.reduce(reduction, values);
  }
  TreeReducer tree;
};

/// Local SGD: replicas train apart, and meet after every second step.
struct Apart : Synchronization {
  std::string describe() const override { return "every second step"; }
  bool trains_locally(const NewVariable& /*variable*/) const override { return true; }
  bool averages_after(int64_t steps) const override { return steps % 2 == 0; }
};

/// Every second variable has one copy for each replica.
struct MixedPlacement : Placement {
  std::string describe() const override { return "one copy, and one for each replica, in turn"; }
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override {
    return variable.index % 2 == 0 ? one.copies(variable, lanes) : own.copies(variable, lanes);
  }
  OneCopyPlacement one;
  OwnCopyPlacement own;
};

class Custom final : public Strategy {
 public:
  explicit Custom(StrategySetup setup) : Strategy(std::move(setup)) {}
};

}  // namespace lockstep::testing
