// Numbers that follow from a row and the table that it is in: on which server it lies, and where an index looks for it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal::inline server {

/// A bijection of 64 bits in which each bit of the result depends on all bits of the input: the finaliser of SplitMix64
/// in Stafford's variant 13. It never changes: checkpoints and rows that were never pushed depend on it.
constexpr uint64_t mixed_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The number of a table, of its name: FNV-1a, mixed.
constexpr uint64_t table_number(std::string_view name) {
  uint64_t number = 0xcbf29ce484222325u;
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mixed_bits(number);
}

/// The mix of a row and its table. Rows of one table have different ones.
constexpr uint64_t row_hash(uint64_t table, int64_t row) { return mixed_bits(static_cast<uint64_t>(row) ^ table); }

/// Of `servers`, where the row of this hash lies. The bits that decide it are the upper 12; an index uses the lower 38.
constexpr int64_t server_of(uint64_t hash, int64_t servers) {
  return static_cast<int64_t>((static_cast<uint64_t>(servers) * (hash >> 52)) >> 12);
}

}  // namespace lockstep::internal::server
