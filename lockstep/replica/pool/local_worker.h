// How the workers of one host share its cores.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::internal::inline comm {
class Rounds;
}  // namespace lockstep::internal::comm

namespace lockstep::internal::inline replica {

/// How many workers come before this one among those of this host, user and network that may use exactly these cores.
/// Workers that have cores of their own, as `lockstep run` gives them, are not in each other's way. Nor are workers
/// that are threads of one process, which knows what its strategies use. All workers call it.
int64_t workers_before_on_cores(Rounds& rounds, const std::vector<int>& cores);

}  // namespace lockstep::internal::replica
