#include "lockstep/replica/pool/local_worker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/rounds.h"

namespace lockstep::internal::inline replica {

WorkersOnCores workers_on_cores(Rounds& rounds, const std::vector<int>& cores) {
  if (rounds.num_workers() == 1) return {};
  const std::string place = fmt::format("{} {}", host_id(), fmt::join(cores, ","));
  const std::string mine = fmt::format("{} process {}", place, getpid());
  const auto all =
      agree_on_call(rounds, {.call = "making a strategy"}, [&](Proposal& proposal) { proposal.data = mine; });
  WorkersOnCores found;
  for (int64_t w = 0; w < rounds.num_workers(); ++w) {
    const std::string& other = all[static_cast<std::size_t>(w)].data;
    if (!other.starts_with(place + " process ") || other == mine) continue;
    ++found.all;
    if (w < rounds.worker_index()) ++found.before;
  }
  return found;
}

}  // namespace lockstep::internal::replica
