// Reading and writing the files of caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::internal {

/// Reads `count` bytes from `offset` on. False where there are fewer, or the system refuses.
bool read_at(int file, void* to, std::size_t count, int64_t offset);
/// Writes `count` bytes from `offset` on. False, with errno set, where the system does not take all of them.
bool write_at(int file, const void* from, std::size_t count, int64_t offset);

/// Throws the DataError of a cache's file that cannot be opened or made, for an `error` of errno; 0: it is not a plain
/// file.
[[noreturn]] void refuse_cache(const std::string& path, int error);

}  // namespace lockstep::internal
