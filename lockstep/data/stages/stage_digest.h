// Digests of stages: what a stage does to the data before it is a part of what the data is.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "lockstep/data/deal/batch_rows.h"

namespace lockstep::internal::inline data {

/// The digest of a stage of this kind, and with these numbers, behind data with the digest `upstream`. 0, where nothing
/// is known but the size, stays 0, and nothing else becomes 0.
inline uint64_t stage_digest(uint64_t upstream, std::string_view kind, std::initializer_list<uint64_t> numbers = {}) {
  if (upstream == 0) return 0;
  uint64_t digest = mixed(upstream, kind.size());
  for (const char letter : kind) digest = mixed(digest, static_cast<unsigned char>(letter));
  for (const uint64_t number : numbers) digest = mixed(digest, number);
  return digest == 0 ? 1 : digest;
}

/// The digest of two together; 0 where nothing is known of either.
inline uint64_t joined_digest(uint64_t first, uint64_t second) {
  return first == 0 && second == 0 ? 0 : mixed(first, second) | 1;
}

}  // namespace lockstep::internal::data
