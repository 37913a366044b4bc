// Copies that go past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::internal::inline reduce {

/// Copies of more bytes in all than this should go past the caches: it is about the size of the last cache of a server.
/// It decides speed alone.
inline constexpr std::size_t kStreamedBytes = std::size_t{32} << 20;

/// Copies `bytes` bytes that are not read soon. The processor does not fetch the lines that are overwritten, which are
/// a third of a copy's traffic. Call end_stream_copies() before another thread may read them.
inline void stream_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__)
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  const std::size_t to_line = (64 - reinterpret_cast<uintptr_t>(target) % 64) % 64;
  const std::size_t head = to_line < bytes ? to_line : bytes;
  std::memcpy(target, source, head);
  std::size_t done = head;
  for (; done + 64 <= bytes; done += 64) {
    for (std::size_t part = 0; part < 64; part += 16) {
      const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + done + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + done + part), value);
    }
  }
  std::memcpy(target + done, source + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Orders this thread's streamed copies before everything that it writes next.
inline void end_stream_copies() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace lockstep::internal::reduce
