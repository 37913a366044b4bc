// What a ReplicaPool does in a child that was forked after the pool was made: nothing that waits for its threads, which
// do not exist there.
#include <thread>
#include <utility>

#include "lockstep/replica/pool/replica_pool.h"

namespace lockstep::internal::inline replica {

void ReplicaPool::require_threads() const {
  if (!process_.is_in_child()) return;
  if (plan_.num_replicas > 1) process_.throw_forked("replica", first_ + 1, first_ + plan_.num_replicas - 1);
  if (rounds_) process_.throw_forked("worker", 0, rounds_->num_workers() - 1);
}

void ReplicaPool::forget_threads() {
  // They can be neither joined nor detached here, and std::thread's destructor ends the process. So they stay for good.
  for (Replica& replica : replicas_) {
    if (replica.thread.joinable()) new std::thread(std::move(replica.thread));  // NOLINT: never destroyed, on purpose
  }
}

}  // namespace lockstep::internal::replica
