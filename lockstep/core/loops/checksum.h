// A fast checksum of memory, with which the library finds foreign writes: writes that did not come through it.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline core {

/// Each block of this many bytes has its own checksum. The fused update works on the same blocks.
inline constexpr int64_t kBlockBytes = 8192;

/// How many blocks hold `bytes` bytes; the last one may be short.
constexpr int64_t blocks_of(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

/// The checksum of `bytes` bytes. It equals the checksum that the fused update keeps of the same memory. Checksums
/// of processes with different vector instructions (simd()) cannot be compared.
uint64_t checksum(const void* memory, int64_t bytes);

}  // namespace lockstep::internal::core
