// Whether all workers have the same values before they update them together.
#pragma once

#include <span>
#include <string>

namespace lockstep::internal::inline variable {
class MirroredState;
}  // namespace lockstep::internal::variable
namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

/// A call of all workers, in a step of the optimizer `name`: compares digests of the values of `states`, in the memory
/// of each. Throws a DivergenceError, the same on all workers, that names the first value that differs, and the
/// workers; on the worker that has found a foreign write that DivergenceError, and a PeerError on the others.
void compare_values(const ReplicaGroup& group, const std::string& name, std::span<MirroredState* const> states);

}  // namespace lockstep::internal::optim
