// A fast checksum of memory: how writes that did not come through the library are seen.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// Stretches of this many bytes have a checksum each; the fused update goes by the same blocks.
inline constexpr int64_t kBlockBytes = 8192;

/// How many blocks `bytes` bytes are.
constexpr int64_t blocks_of(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

/// The checksum of `bytes` bytes; equal to what the fused update keeps of the same memory. Valid in this process only.
uint64_t checksum(const void* memory, int64_t bytes);

}  // namespace lockstep::internal
