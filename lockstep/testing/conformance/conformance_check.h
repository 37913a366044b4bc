// One check of a conformance suite, in the form that every test framework can run.
#pragma once

#include <functional>
#include <string>

namespace lockstep::testing {

/// One claim about a subject of one shape: about a strategy (conformance.h) or about worlds (world_conformance.h).
struct ConformanceCheck {
  std::string name;           // letters, digits and underscores: "ReduceIsOfEveryReplicasValueOnce_4ReplicasOn2Lanes"
  std::function<void()> run;  // makes new subjects; throws a DivergenceError: what was found and where to look
};

}  // namespace lockstep::testing
