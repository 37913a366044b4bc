#include "lockstep/comm/shared_memory/ring.h"

#include <bit>
#include <cstring>

namespace lockstep::internal::inline comm {

std::size_t ring_size_of(int64_t workers) {
  // All rings together have about this many bytes, of which the system gives those pages that are used.
  constexpr std::size_t kAll = std::size_t{64} << 20;
  constexpr std::size_t kLargest = std::size_t{1} << 18;
  constexpr std::size_t kSmallest = std::size_t{1} << 14;
  const auto pairs = static_cast<std::size_t>(workers * workers);
  return std::clamp(std::bit_floor(kAll / pairs), kSmallest, kLargest);
}

void RingWriter::put(const void* from, std::size_t count) {
  const std::size_t begin = position_ & (size_ - 1);
  const std::size_t first = std::min(count, size_ - begin);
  std::memcpy(bytes_ + begin, from, first);
  if (first < count) std::memcpy(bytes_, static_cast<const std::byte*>(from) + first, count - first);
  position_ += count;
}

void RingReader::take(void* to, std::size_t count) {
  const std::size_t begin = position_ & (size_ - 1);
  const std::size_t first = std::min(count, size_ - begin);
  std::memcpy(to, bytes_ + begin, first);
  if (first < count) std::memcpy(static_cast<std::byte*>(to) + first, bytes_, count - first);
  position_ += count;
}

}  // namespace lockstep::internal::comm
