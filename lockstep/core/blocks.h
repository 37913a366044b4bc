// How a row of things is dealt to several parts in blocks of neighbours, such as replicas to workers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::internal::inline core {

/// Neighbouring things in a row: [first, first + count).
struct Block {
  int64_t first = 0;
  int64_t count = 0;
  constexpr int64_t end() const { return first + count; }
  constexpr bool contains(int64_t i) const { return i >= first && i < end(); }
  bool operator==(const Block&) const = default;
};

/// The block that part `index` gets when `total` things are dealt to `parts` parts in order. The sizes of the blocks
/// differ by at most one, and the larger blocks come first. 0 <= index < parts.
constexpr Block block_of(int64_t total, int64_t parts, int64_t index) {
  const int64_t each = total / parts;
  const int64_t larger = total % parts;
  return {index * each + std::min(index, larger), each + (index < larger ? 1 : 0)};
}

/// The part whose block contains thing `i`; 0 <= i < total.
constexpr int64_t part_that_has(int64_t total, int64_t parts, int64_t i) {
  const int64_t each = total / parts;
  const int64_t larger = total % parts;
  const int64_t in_larger = larger * (each + 1);
  return i < in_larger ? i / (each + 1) : larger + (i - in_larger) / each;
}

}  // namespace lockstep::internal::core
