// One strategy of every kind, for tests of what all of them promise.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

struct StrategyCase {
  const char* name;  // letters and digits, for test names
  std::unique_ptr<Strategy> (*make)();
};

/// A new strategy is one more line here.
const std::vector<StrategyCase>& strategy_cases();

std::ostream& operator<<(std::ostream& stream, const StrategyCase& one);

}  // namespace lockstep::testing
