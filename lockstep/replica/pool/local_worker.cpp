#include "lockstep/replica/pool/local_worker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/rounds.h"

namespace lockstep::internal::inline replica {

int64_t workers_before_on_cores(Rounds& rounds, const std::vector<int>& cores) {
  if (rounds.num_workers() == 1) return 0;
  const std::string place = fmt::format("{} {}", host_id(), fmt::join(cores, ","));
  const std::string mine = fmt::format("{} process {}", place, getpid());
  const auto all =
      agree_on_call(rounds, {.call = "making a strategy"}, [&](Proposal& proposal) { proposal.data = mine; });
  int64_t before = 0;
  for (int64_t w = 0; w < rounds.worker_index(); ++w) {
    const std::string& other = all[static_cast<std::size_t>(w)].data;
    if (other.starts_with(place + " process ") && other != mine) ++before;
  }
  return before;
}

}  // namespace lockstep::internal::replica
