// Sums of gradients that travel between workers while backward still computes.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/windows.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/exchange/sum_row.h"
#include "lockstep/gradient/accumulation_hooks.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline exchange {

/// Sends the buckets of a SumRow ahead of the optimizer's step. Where a backward accumulates into a gradient as often
/// as in the step before, the gradient is taken to be complete. When those of all replicas of the worker are, their sum
/// is packed into the row. A bucket leaves when all of its sums are there, and buckets leave in their order; owners add
/// up and send the sums on as soon as all workers' parts have arrived. All of this happens on the replicas' own
/// threads, between the layers of their backwards.
///
/// So the gradients of one replica are read by the thread of another one, while the first may still run: the program
/// may change what is read, and must not free it in place (at::Tensor::resize_ of a gradient).
///
/// That a gradient is complete is a guess. So in the optimizer's step each worker compares, bit for bit, what it has
/// sent with what it would send, and all tell each other how much of it is sound. Buckets that are not sound on all
/// workers travel once more; where that happens in many steps, no bucket leaves ahead any more.
///
/// Each worker sends one partial sum of each gradient. Each function is called on every worker, in the order below,
/// while all replicas are at rest; restart() only where it has to be.
class GradientBuckets {
 public:
  /// Null where a worker sends several partial sums, or the World has no windows. Where it is not wanted on any worker,
  /// nothing is sent ahead on all. `group` and `row` outlive it.
  static std::unique_ptr<GradientBuckets> make(std::vector<std::shared_ptr<VariableState>> variables,
                                               const ReplicaGroup& group, SumRow& row, bool is_wanted);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Compares a lane's share of what has left since the last step with `gradients`, those of the step. Call it on all
  /// lanes before report().
  void compare(const GradientTable& gradients, int lane);
  /// What this worker has sent since the last step, for begin_step() on all workers.
  std::string report() const;
  /// Reads the reports of all workers. Throws a PeerError for one that cannot be read.
  void begin_step(std::span<const std::string> reports);
  /// How many buckets have left on all workers, and need not travel in this step.
  std::size_t num_sent() const { return num_sent_; }
  /// The row is about to be laid out anew, on all workers, with the variables `in_row` in buckets: nothing counts that
  /// was sent before.
  void restart(const std::vector<std::size_t>& in_row);
  /// Gets all memory that the next steps need, so that nothing fails once the sums are there.
  void prepare();
  /// Call when partial sums have arrived: sends the sums that have not been sent ahead. They are there after the next
  /// call of the World.
  void send_sums();
  void end_step();
  /// Lets go of the gradients of a run that failed. What has been sent stays sent.
  void forget_gradients() noexcept;

  /// How many bytes the last step sent ahead to other workers.
  int64_t bytes_sent() const { return bytes_of_step_; }

 private:
  GradientBuckets(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, SumRow& row,
                  bool is_wanted);

  /// What a worker tells the others.
  struct Report {
    uint64_t window = 0;
    uint64_t unused = 0;  // Windows::unused()
    uint64_t step = 0;
    uint64_t is_wanted = 0;
    int64_t sent = 0;   // buckets
    int64_t sound = 0;  // of them, from the first one on
  };

  /// What one replica of this worker has. Written by its own thread while it runs, and while all are at rest.
  struct alignas(64) OfReplica {
    AccumulationHooks hooks = {};
    std::vector<uint32_t> expected = {};    // by variable: how often backward accumulated before the last step; 0:
                                            // unknown
    std::vector<uint32_t> counted = {};     // and since then
    std::vector<at::Tensor> complete = {};  // by variable: its gradient, from when it is taken to be complete until it
                                            // is packed, by the thread that counts the last replica in complete_
  };

  /// After each accumulation, on the replica's thread.
  void accumulated(OfReplica& replica, std::size_t i, const at::Tensor& gradient);
  /// Whether the gradient is memory of the variable's form.
  bool fits(std::size_t i, const at::Tensor& gradient) const;
  /// Packs the sum of the replicas' gradients, which are complete, and lets go of them.
  void pack(std::size_t i);
  // With `mutex_` held, or while all replicas are at rest.
  void send_complete();
  /// Moves bytes, adds up what has arrived, and sends the sums.
  void progress();
  bool has_arrived(std::size_t bucket) const;
  void add_and_send(std::size_t bucket);
  void put(uint64_t window, int64_t worker, int64_t offset, std::span<const std::byte> bytes, const at::Tensor& memory);
  void open();
  void close() noexcept;
  /// Nothing has been sent since the last step.
  void clear() noexcept;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  SumRow& row_;
  Windows& windows_;   // while replicas run: guarded by mutex_
  std::mutex& mutex_;  // that of the group's windows: the buckets of all optimizers use these
  const ProcessMark process_;
  const int64_t worker_;
  const int64_t num_workers_;
  const bool is_wanted_;

  std::vector<OfReplica> replicas_;  // by local replica
  /// By variable: how many replicas' gradients are taken to be complete.
  std::unique_ptr<std::atomic<int64_t>[]> complete_;

  std::vector<std::size_t> sound_;  // by lane: how many buckets are as they left, from the first one on; compare()

  // Written while all replicas are at rest.
  bool is_on_ = true;
  int mispredictions_ = 0;                 // grows where something had to travel once more, and falls otherwise
  bool must_restart_ = false;              // workers have other windows, or none
  bool is_new_ = false;                    // the windows were opened in this step
  uint64_t next_window_ = 0;               // unused on all workers
  uint64_t window_ = 0;                    // of partial sums; that of sums follows; 0: none is open
  uint64_t step_ = 0;                      // since the windows were opened
  std::vector<char> in_row_;               // by variable
  std::vector<std::size_t> variables_in_;  // by bucket: of how many gradients it has elements
  std::size_t num_sent_ = 0;               // of the step
  std::vector<uint64_t> arrived_before_;   // by worker: puts of earlier steps
  std::vector<uint64_t> sent_by_;          // by worker: buckets of the step
  int64_t bytes_of_step_ = 0;

  // While replicas run: guarded by mutex_.
  std::vector<char> is_packed_;     // by variable
  std::vector<std::size_t> waits_;  // by bucket: for how many gradients
  std::size_t sent_ = 0;            // buckets whose partial sums have left
  std::size_t added_ = 0;           // and those whose sums have left, as far as this worker owns them
  uint32_t modes_ = 0;              // in which sums were added since the last step, if any were
  bool is_broken_ = false;          // something has left for some workers alone
  int64_t bytes_sent_ = 0;
  std::chrono::steady_clock::time_point moved_ = {};
};

}  // namespace lockstep::internal::exchange
