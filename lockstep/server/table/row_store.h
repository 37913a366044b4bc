// The rows of a table in memory: their bytes with ids, positions and counts, and what a reader walks while they change.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/server/table/row_index.h"

namespace lockstep::internal::inline server {

/// How a slab of rows lies in memory: the rows' values, then their ids and positions, and then their counts.
struct SlabLayout {
  static constexpr int64_t kRows = 256;

  SlabLayout(int64_t row_bytes, bool with_counts);

  int64_t value_bytes;  // of one row
  int64_t stride;       // from one row's values to the next
  bool has_counts;
  int64_t heads_at, counts_at;  // from the slab's begin
  int64_t bytes;                // of a slab

  char* values(char* slab, uint32_t place) const { return slab + (place % kRows) * stride; }
  int64_t& id(char* slab, uint32_t place) const { return head(slab, place).id; }
  int64_t& position(char* slab, uint32_t place) const { return head(slab, place).position; }
  uint32_t& count(char* slab, uint32_t place) const {
    return reinterpret_cast<uint32_t*>(slab + counts_at)[place % kRows];
  }

 private:
  friend class RowStore;
  struct Head {  // in one cache line: an update reads the one and writes the other
    int64_t id;
    int64_t position;
  };
  Head& head(char* slab, uint32_t place) const { return reinterpret_cast<Head*>(slab + heads_at)[place % kRows]; }
};

/// The rows that a store had at one moment. Any one thread reads them, beside the thread that goes on writing the
/// store, and also when the store is gone.
class FrozenRows {
 public:
  FrozenRows(FrozenRows&&) = default;
  FrozenRows& operator=(FrozenRows&&) = delete;
  ~FrozenRows();

  int64_t size() const { return size_; }
  const char* values(uint32_t place) const { return layout_.values(slab(place), place); }
  int64_t id(uint32_t place) const { return layout_.id(slab(place), place); }
  int64_t position(uint32_t place) const { return layout_.position(slab(place), place); }
  uint32_t count(uint32_t place) const { return layout_.has_counts ? layout_.count(slab(place), place) : 0; }

 private:
  friend class RowStore;
  FrozenRows(const SlabLayout& layout, std::vector<std::shared_ptr<char>> slabs, int64_t size,
             std::shared_ptr<std::atomic<bool>> is_over)
      : layout_(layout), slabs_(std::move(slabs)), size_(size), is_over_(std::move(is_over)) {}
  char* slab(uint32_t place) const { return slabs_[place / SlabLayout::kRows].get(); }

  SlabLayout layout_;
  std::vector<std::shared_ptr<char>> slabs_;
  int64_t size_;
  std::shared_ptr<std::atomic<bool>> is_over_;  // null where this was moved from
};

/// Rows at places from 0 to size() - 1. One thread uses a store; readers of what it has frozen are other threads.
///
/// Invariant: a slab that a FrozenRows has is copied before its next change, unless all FrozenRows are gone by then.
class RowStore {
 public:
  static constexpr uint32_t kNowhere = RowIndex::kNowhere;

  RowStore(int64_t row_bytes, bool with_counts);

  int64_t size() const { return size_; }
  const SlabLayout& layout() const { return layout_; }
  const RowIndex& index() const { return index_; }

  uint32_t find(int64_t id, uint64_t hash) const {
    return index_.find(hash, [&](uint32_t place) { return this->id(place) == id; });
  }
  /// Asks the processor for what find() will read, `likely` being what the index says; with `lines` of the row's
  /// values, which are going to be read, or written.
  [[gnu::always_inline]] void prefetch(uint32_t likely, int64_t lines) const {
    char* const slab = this->slab(likely);
    __builtin_prefetch(&layout_.id(slab, likely));
    const char* const values = layout_.values(slab, likely);
    for (int64_t k = 0; k < lines; ++k) __builtin_prefetch(values + k * kLineBytes);
    if (layout_.has_counts) __builtin_prefetch(&layout_.count(slab, likely));
  }

  const char* values(uint32_t place) const { return layout_.values(slab(place), place); }
  int64_t id(uint32_t place) const { return layout_.id(slab(place), place); }
  int64_t position(uint32_t place) const { return layout_.position(slab(place), place); }
  uint32_t count(uint32_t place) const { return layout_.has_counts ? layout_.count(slab(place), place) : 0; }

  /// What may be written of a row until the next call of freeze().
  struct Writable {
    char* values;
    int64_t* position;
    uint32_t* count;  // null where the layout has none
  };
  Writable write(uint32_t place) {
    if (is_frozen_[place / SlabLayout::kRows]) thaw(place / SlabLayout::kRows);
    char* const slab = this->slab(place);
    return {layout_.values(slab, place), &layout_.position(slab, place),
            layout_.has_counts ? &layout_.count(slab, place) : nullptr};
  }

  /// Adds a row that is not here, and gives its place. Its values are to be written; its position and count are 0.
  uint32_t add(int64_t id, uint64_t hash);
  /// Forgets a row. The last row moves to its place; `last_hash` is that row's hash.
  void remove(uint32_t place, uint64_t hash, uint64_t last_hash);

  FrozenRows freeze();

  /// All memory that the rows, their index and what is still frozen take.
  int64_t bytes() const;
  /// The memory of the rows and of their index, if there were `more` of them.
  int64_t bytes_with(int64_t more) const;

 private:
  static constexpr int64_t kLineBytes = 64;
  char* slab(uint32_t place) const { return starts_[place / SlabLayout::kRows]; }
  std::shared_ptr<char> make_slab() const;
  /// Puts a copy in the place of a slab that a reader has.
  void thaw(std::size_t slab);
  /// Whether any FrozenRows is still read; where none is, no slab counts as frozen any longer.
  bool has_readers();

  SlabLayout layout_;
  RowIndex index_;
  int64_t size_ = 0;
  std::vector<std::shared_ptr<char>> slabs_;
  std::vector<char*> starts_;                                // of the slabs
  std::vector<uint8_t> is_frozen_;                           // by slab
  std::vector<std::shared_ptr<std::atomic<bool>>> readers_;  // whether each FrozenRows is over
  std::shared_ptr<std::atomic<int64_t>> slab_bytes_;         // of all slabs that live; readers lower it too
};

}  // namespace lockstep::internal::server
