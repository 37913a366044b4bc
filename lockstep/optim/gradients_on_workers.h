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

/// For each variable, 1 where a replica of any worker has a gradient, otherwise 0. `is_here(i)` says whether one of
/// this process has. Every worker calls it with the same variables, while all replicas are at rest. What one worker's
/// `check()` throws is thrown there, and a PeerError on the others. Throws a UsageError that names the variable and two
/// workers where one of them has frozen it and the other has not, and what the World throws.
std::vector<char> gradients_on_any_worker(const ReplicaGroup& group,
                                          std::span<const std::shared_ptr<VariableState>> variables,
                                          FunctionRef<bool(std::size_t)> is_here, FunctionRef<void()> check);

}  // namespace lockstep::internal
