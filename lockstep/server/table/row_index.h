// Where the rows of a table lie: from a row's hash to its place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/server/table/row_hash.h"

namespace lockstep::internal::inline server {

/// Open addressing with linear probing, 8 bytes an entry: the lower 32 bits of the hash, and the row's place. The index
/// does not know rows' ids: several rows may have equal 32 bits, so find() asks which of them it is. Entries are in
/// parts by 6 bits of the hash, each of which doubles by itself when it is three quarters full, so that no single
/// insertion moves more than a sixty-fourth of the table. An entry has all bits of the hash that its position depends
/// on, so that growth reads no ids.
class RowIndex {
 public:
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  RowIndex();

  /// Asks the processor for what find() will read. Inlined for the reason that RowStore::prefetch() has.
  [[gnu::always_inline]] void prefetch(uint64_t hash) const {
    const Part& part = part_of(hash);
    __builtin_prefetch(&part.entries[hash & part.mask]);
  }
  /// The place of the first row with these 32 bits, nearly always the row itself; kNowhere: the row is not here.
  uint32_t likely(uint64_t hash) const {
    return find(hash, [](uint32_t) { return true; });
  }
  /// The place for which `is_row(place)` holds, or kNowhere.
  template <class IsRow>
  uint32_t find(uint64_t hash, const IsRow& is_row) const {
    const Part& part = part_of(hash);
    for (uint32_t i = static_cast<uint32_t>(hash) & part.mask;; i = (i + 1) & part.mask) {
      const uint64_t entry = part.entries[i];
      if (entry == 0) return kNowhere;
      if (static_cast<uint32_t>(entry >> 32) != static_cast<uint32_t>(hash)) continue;
      const uint32_t place = static_cast<uint32_t>(entry) - 1;
      if (is_row(place)) return place;
    }
  }
  /// Adds a row that is not here. `place` is below kNowhere.
  void insert(uint64_t hash, uint32_t place);
  /// The row of this hash at `from` lies at `to` from now on.
  void move(uint64_t hash, uint32_t from, uint32_t to);
  /// Forgets the row of this hash at `place`.
  void erase(uint64_t hash, uint32_t place);

  int64_t bytes() const { return bytes_; }
  /// The bytes of an index of so many rows, if they are spread evenly over its parts.
  static int64_t bytes_for(int64_t rows);

 private:
  static constexpr int kPartBits = 6;
  static constexpr std::size_t kParts = std::size_t{1} << kPartBits;
  static constexpr uint32_t kFewest = 16;  // entries of a part

  struct Part {
    std::unique_ptr<uint64_t[]> entries;
    uint32_t mask = 0;
    uint32_t used = 0;
  };
  static constexpr uint64_t entry_of(uint64_t hash, uint32_t place) { return hash << 32 | (place + 1); }
  static std::size_t number_of(uint64_t hash) { return hash >> 32 & (kParts - 1); }
  const Part& part_of(uint64_t hash) const { return parts_[number_of(hash)]; }
  Part& part_of(uint64_t hash) { return parts_[number_of(hash)]; }
  /// The position of an entry that is there.
  static uint32_t position(const Part& part, uint64_t entry);
  static void put(Part& part, uint64_t entry);
  void grow(Part& part);

  std::array<Part, kParts> parts_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep::internal::server
