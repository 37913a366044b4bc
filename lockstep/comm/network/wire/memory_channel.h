// The bytes of calls through memory that two workers of a host map.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/network/wire/channel.h"
#include "lockstep/comm/shared_memory/ring.h"
#include "lockstep/comm/shared_memory/shared_memory.h"

namespace lockstep::internal::inline comm {

/// The memory of two workers: a ring in each direction.
class PairMemory {
 public:
  /// New memory. A ClusterError (LS-CLUSTER-MEMORY), as for map().
  static PairMemory create(std::size_t ring_size);
  /// Maps what the other worker has created.
  static PairMemory map(int file, std::size_t ring_size);

  int file() const { return memory_.file(); }
  void close_file() { memory_.close_file(); }

  /// Of `from`, which is 0 for the worker that has created the memory and 1 for the other one.
  Ring& ring(int from) const;
  std::byte* ring_bytes(int from) const;
  std::size_t ring_size() const { return ring_size_; }

  // What a worker waits for that is about to sleep.
  static constexpr uint32_t kBytes = 1;
  static constexpr uint32_t kRoom = 2;
  /// What worker 0 or 1 of the pair waits for; 0 while it does not sleep. Whoever clears it rings the bell.
  std::atomic<uint32_t>& waits(int worker) const;

 private:
  struct Tables;
  PairMemory(SharedMemory memory, std::size_t ring_size);
  Tables& tables() const;

  SharedMemory memory_;
  std::size_t ring_size_;
};

/// Copies bytes into the memory and out of it. A local socket between both workers wakes one that sleeps, and breaks
/// when the other one's process ends; what that one had written before can still be read.
class MemoryChannel final : public Channel {
 public:
  /// `self` is 0 for the worker that has created the memory. `bell` is the socket, which sends datagrams in order.
  MemoryChannel(PairMemory memory, int self, FileDescriptor bell);

  Transfer read(std::span<std::byte> place) override;
  Transfer write(std::span<const std::byte> bytes) override;
  bool flush() override { return true; }  // the memory outlives this process
  std::chrono::nanoseconds watch(bool for_room, std::vector<pollfd>& files) override;

 private:
  /// The other worker need not ring any more. Finds out whether it is gone.
  void end_sleep();
  /// Wakes the other worker if it sleeps and waits for this.
  void ring_for(uint32_t what);

  const PairMemory memory_;
  const FileDescriptor bell_;
  RingWriter out_;
  RingReader in_;
  std::atomic<uint32_t>& my_waits_;
  std::atomic<uint32_t>& other_waits_;
  bool may_be_rung_for_ = false;
  int rung_ = 0;            // how often the other worker has rung that was not heard
  bool is_closed_ = false;  // the other worker is gone
};

}  // namespace lockstep::internal::comm
