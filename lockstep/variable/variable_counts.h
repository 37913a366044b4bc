// How many variables and optimizers of a strategy are in an unusual state, so that a step need not look at each.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::internal::inline variable {

/// Shared by the registry and the variables, which may outlive it. Any thread reads; a variable that enters or leaves
/// the state changes the count, and for `written` an optimizer does so too.
struct VariableCounts {
  std::atomic<int64_t> damaged{0};    // something other than the library wrote them
  std::atomic<int64_t> stand_ins{0};  // a moving average stands in for their value
  std::atomic<int64_t> written{0};    // they keep what they were before a write of this run, to roll back
};

}  // namespace lockstep::internal::variable
