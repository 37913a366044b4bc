// For which variables any worker has a gradient.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal {

class ReplicaGroup;
class VariableState;

/// Which gradients of a variable some replicas have.
enum class Gradients : char {
  kNone,    // none of them has one
  kOfZero,  // some have one, and all of these count as zero
  kSome,    // some have one that is to be added
};

/// For each variable, which gradients the replicas of all workers have. `here(i)` says which ones those of this process
/// have. Every worker calls it with the same variables, while all replicas are at rest. What one worker's `check()`
/// throws is thrown there, and a PeerError on the others. Throws a UsageError that names the variable and two workers
/// where one of them has frozen it and the other has not, and what the World throws.
std::vector<Gradients> gradients_on_any_worker(const ReplicaGroup& group,
                                               std::span<const std::shared_ptr<VariableState>> variables,
                                               FunctionRef<Gradients(std::size_t)> here, FunctionRef<void()> check);

}  // namespace lockstep::internal
