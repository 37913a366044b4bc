// A stream of bytes from one process to another, through memory that both map.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::internal::inline comm {

/// How far both sides are. Positions count all bytes that ever went through. The bytes lie elsewhere.
struct Ring {
  alignas(64) std::atomic<uint64_t> written = 0;  // by the sender
  alignas(64) std::atomic<uint64_t> read = 0;     // by the receiver
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics that processes share need no lock");

/// How many bytes each ring has where so many workers of a host have one to each other: a power of two.
std::size_t ring_size_of(int64_t workers);

/// The other side hears of each piece of so many bytes, so that both copy at the same time, and what one writes the
/// other finds in the caches.
inline constexpr std::size_t kPieceOfRing = std::size_t{32} << 10;

/// The sender's end. One thread uses it, and nobody else writes into the ring meanwhile.
class RingWriter {
 public:
  RingWriter(Ring& ring, std::byte* bytes, std::size_t size)
      : ring_(&ring), bytes_(bytes), size_(size), position_(ring.written.load(std::memory_order_relaxed)) {}

  /// How many bytes fit now.
  std::size_t room() const { return size_ - std::min(size_, static_cast<std::size_t>(position_ - ring_->read.load())); }
  /// Adds bytes, for which there is room. The other side does not know of them yet.
  void put(const void* from, std::size_t count);
  /// Tells the other side of what was added. A sequentially consistent store.
  void publish() { ring_->written.store(position_); }

 private:
  Ring* ring_;
  std::byte* bytes_;
  std::size_t size_;
  uint64_t position_;
};

/// The receiver's end, as above.
class RingReader {
 public:
  RingReader(Ring& ring, const std::byte* bytes, std::size_t size)
      : ring_(&ring), bytes_(bytes), size_(size), position_(ring.read.load(std::memory_order_relaxed)) {}

  /// How many bytes are there. More than fit into the ring: the memory was damaged.
  std::size_t there() const { return static_cast<std::size_t>(ring_->written.load() - position_); }
  bool is_damaged(std::size_t there) const { return there > size_; }
  /// Takes bytes, which are there. The other side does not know of it yet.
  void take(void* to, std::size_t count);
  /// Gives the place of what was taken to the other side. A sequentially consistent store.
  void release() { ring_->read.store(position_); }

 private:
  Ring* ring_;
  const std::byte* bytes_;
  std::size_t size_;
  uint64_t position_;
};

}  // namespace lockstep::internal::comm
