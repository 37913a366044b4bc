// The pieces of a tensor in a file: each has a checksum of its own, and each may be written and read by another thread.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline checkpoint {

/// How long the pieces of a checkpoint are that is saved now; the last piece of a tensor may be shorter.
inline constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

/// How many pieces `bytes` bytes are; at least one, which may be empty.
constexpr uint64_t pieces_of(uint64_t bytes, uint64_t piece_bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / piece_bytes + 1;
}

}  // namespace lockstep::internal::checkpoint
