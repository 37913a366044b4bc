#include "lockstep/server/table/row_index.h"

#include <utility>

namespace lockstep::internal::inline server {

RowIndex::RowIndex() {
  for (Part& part : parts_) {
    part.entries = std::make_unique<uint64_t[]>(kFewest);
    part.mask = kFewest - 1;
  }
  bytes_ = static_cast<int64_t>(kParts * kFewest * sizeof(uint64_t));
}

void RowIndex::put(Part& part, uint64_t entry) {
  uint32_t i = static_cast<uint32_t>(entry >> 32) & part.mask;
  while (part.entries[i] != 0) i = (i + 1) & part.mask;
  part.entries[i] = entry;
}

void RowIndex::grow(Part& part) {
  const std::size_t count = std::size_t{part.mask} + 1;
  auto old = std::exchange(part.entries, std::make_unique<uint64_t[]>(2 * count));
  part.mask = static_cast<uint32_t>(2 * count - 1);
  for (std::size_t i = 0; i < count; ++i) {
    if (old[i] != 0) put(part, old[i]);
  }
  bytes_ += static_cast<int64_t>(count * sizeof(uint64_t));
}

void RowIndex::insert(uint64_t hash, uint32_t place) {
  Part& part = part_of(hash);
  if ((uint64_t{part.used} + 1) * 4 > (uint64_t{part.mask} + 1) * 3) grow(part);
  put(part, entry_of(hash, place));
  ++part.used;
}

uint32_t RowIndex::position(const Part& part, uint64_t entry) {
  uint32_t i = static_cast<uint32_t>(entry >> 32) & part.mask;
  while (part.entries[i] != entry) i = (i + 1) & part.mask;
  return i;
}

void RowIndex::move(uint64_t hash, uint32_t from, uint32_t to) {
  Part& part = part_of(hash);
  part.entries[position(part, entry_of(hash, from))] = entry_of(hash, to);
}

void RowIndex::erase(uint64_t hash, uint32_t place) {
  Part& part = part_of(hash);
  uint32_t hole = position(part, entry_of(hash, place));
  // Entries behind the hole move into it where that does not put them before the position at which they are looked for.
  for (uint32_t i = (hole + 1) & part.mask; part.entries[i] != 0; i = (i + 1) & part.mask) {
    const uint32_t home = static_cast<uint32_t>(part.entries[i] >> 32) & part.mask;
    if (((i - home) & part.mask) < ((i - hole) & part.mask)) continue;
    part.entries[hole] = part.entries[i];
    hole = i;
  }
  part.entries[hole] = 0;
  --part.used;
}

int64_t RowIndex::bytes_for(int64_t rows) {
  const int64_t in_part = (rows + static_cast<int64_t>(kParts) - 1) / static_cast<int64_t>(kParts);
  int64_t entries = kFewest;
  while (in_part * 4 > entries * 3) entries *= 2;
  return entries * static_cast<int64_t>(kParts * sizeof(uint64_t));
}

}  // namespace lockstep::internal::server
