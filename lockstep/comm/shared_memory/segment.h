// The memory that all workers of a host map, and what lies where in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/shared_memory/ring.h"
#include "lockstep/comm/shared_memory/shared_memory.h"

namespace lockstep::internal::inline comm {

/// Whether a worker takes part. Written by the worker itself.
enum class Presence : uint32_t {
  kHere = 0,
  kLeft = 1,    // it destroyed its World
  kExited = 2,  // its program ended with the World still there
};

/// What one worker writes and all others read, but for `doorbell`.
struct alignas(64) WorkerArea {
  static constexpr std::size_t kLongestReason = 3840;
  static constexpr uint32_t kBeingWritten = UINT32_MAX;

  std::atomic<uint32_t> doorbell = 0;  // rung by others while `sleeps`: a futex word
  std::atomic<uint32_t> sleeps = 0;
  std::atomic<Presence> presence = Presence::kHere;
  alignas(64) std::atomic<uint64_t> begun = 0;       // calls that it has come to
  std::atomic<uint64_t> taken = 0;                   // calls in which it has all that the others sent it
  alignas(64) std::atomic<uint64_t> heartbeats = 0;  // of its monitor
  std::atomic<uint64_t> phase = 0;                   // encode(WorkerPhase)
  std::atomic<int64_t> process = 0;                  // its id
  std::atomic<uint32_t> reason_length = 0;           // 1 + the number of bytes; 0: none; kBeingWritten
  char reason[kLongestReason] = {};
};

/// One mapping of the memory. It consists of a WorkerArea for each worker, a Ring for each pair of workers, and the
/// bytes of the rings. Nothing in it has an address or a pointer: every process maps it elsewhere.
class Segment {
 public:
  /// New memory for so many workers, without a name: it is gone when the last process that maps it has ended, however
  /// it ends. A ClusterError (LS-CLUSTER-MEMORY) where the system gives none.
  static Segment create(int64_t workers);
  /// Maps memory that create() made in another process; `file` stays the caller's, and is kept open. A ClusterError
  /// (LS-CLUSTER-MEMORY) where it is not such memory for so many workers.
  static Segment map(int file, int64_t workers);

  /// The memory's file, to be given to other processes. It may grow behind the segment: see extents.h.
  int file() const { return memory_.file(); }
  /// How many bytes of the file are the segment's.
  std::size_t length() const { return memory_.length(); }
  int64_t workers() const { return workers_; }
  WorkerArea& worker(int64_t index) const;
  Ring& ring(int64_t from, int64_t to) const;
  std::byte* ring_bytes(int64_t from, int64_t to) const;
  /// A power of two.
  std::size_t ring_size() const { return ring_size_of(workers_); }

  /// Ends the run for all workers, in the name of `worker`, unless it has ended already: the first reason stays. Wakes
  /// all. Any thread of the process of `worker` may call.
  void end(int64_t worker, std::string_view reason) const noexcept;
  /// Why the run has ended; empty while it has not.
  std::string ended() const;
  bool has_ended() const;

  /// Call n is committed when all workers have taken what they were sent in it, and the run had not ended before. One
  /// word holds how many calls are committed and whether the run has ended. It does not change after the end, so all
  /// workers know the same, whoever dies when.
  bool is_committed(uint64_t call) const;
  /// Commits `call`, which all workers have taken; false where the run had ended before.
  bool commit(uint64_t call) const;

  /// Wakes a worker that sleeps in wait().
  void wake(int64_t worker) const;
  /// Lets `worker`, which is this process, sleep until another worker calls wake(), or for `most` nanoseconds, or
  /// spuriously. Returns at once where `ready()` holds. What changes `ready()` must be a sequentially consistent store,
  /// followed by wake(): then no change is missed.
  template <class Ready>
  void wait(int64_t worker, int64_t most, const Ready& ready) const {
    WorkerArea& self = this->worker(worker);
    const uint32_t rung = self.doorbell.load();
    self.sleeps.store(1);
    if (!ready()) sleep(self.doorbell, rung, most);
    self.sleeps.store(0);
  }

 private:
  struct Header;
  Segment(SharedMemory memory, int64_t workers);
  Header& header() const;
  static void sleep(std::atomic<uint32_t>& word, uint32_t value, int64_t most);

  SharedMemory memory_;
  int64_t workers_;
};

}  // namespace lockstep::internal::comm
