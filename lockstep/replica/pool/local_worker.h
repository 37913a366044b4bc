// How the workers of one host share its cores.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::internal::inline comm {
class Rounds;
}  // namespace lockstep::internal::comm

namespace lockstep::internal::inline replica {

struct WorkersOnCores {
  int64_t before = 0;  // this one, in the order of the workers
  int64_t all = 1;
};

/// The workers of this host, user and network that may use exactly these cores, this one included. Workers that have
/// cores of their own, as `lockstep run` gives them, are not in each other's way. Nor are workers that are threads of
/// one process, which knows what its strategies use. All workers call it.
WorkersOnCores workers_on_cores(Rounds& rounds, const std::vector<int>& cores);

}  // namespace lockstep::internal::replica
