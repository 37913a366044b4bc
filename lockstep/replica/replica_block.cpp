#include "lockstep/replica/replica_block.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline replica {

namespace {

int64_t count_in(const std::string& data, int64_t worker) {
  MessageReader reader(data, worker, "how many replicas it has",
                       "start all workers with the same version of Lockstep, and let all make their strategies first");
  const auto count = reader.get<int64_t>();
  reader.expect(count > 0);
  reader.expect_end();
  return count;
}

}  // namespace

ReplicaBlock block_of_worker(Rounds& rounds, int64_t local) {
  const int64_t workers = rounds.num_workers();
  if (workers == 1) return {.first = 0, .local = local, .all = local};
  std::vector<int64_t> counts;
  Proposal mine{.call = "replicas"};
  ByteWriter(mine.data).put(local);
  for (const Proposal& one : propose(rounds, mine)) {
    counts.push_back(count_in(one.data, static_cast<int64_t>(counts.size())));
  }
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t w = 0; w < workers; ++w) {
    if (counts[static_cast<std::size_t>(w)] == block_of(all, workers, w).count) continue;
    throw UsageError(
        "LS-WORKER-ORDER",
        fmt::format("the workers have {} replicas; worker {} should have {} of the {} in all", fmt::join(counts, ", "),
                    w, block_of(all, workers, w).count, all),
        "set .replicas, the same on all workers, or give all workers as many lanes; a topology of your own deals the "
        "replicas in blocks that differ by at most one, the larger first");
  }
  return {.first = block_of(all, workers, rounds.worker_index()).first, .local = local, .all = all};
}

}  // namespace lockstep::internal::replica
