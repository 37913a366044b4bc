#include "lockstep/server/table/row_store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace lockstep::internal::inline server {

namespace {

constexpr int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/// A row that begins at a cache line takes the fewest lines. Where that would cost much memory it begins at a
/// register's width.
constexpr int64_t stride_of(int64_t value_bytes) {
  const int64_t lines = rounded_up(value_bytes, 64);
  return (lines - value_bytes) * 8 <= value_bytes ? lines : rounded_up(value_bytes, 16);
}

}  // namespace

SlabLayout::SlabLayout(int64_t row_bytes, bool with_counts)
    : value_bytes(row_bytes),
      stride(stride_of(row_bytes)),
      has_counts(with_counts),
      heads_at(kRows * stride),
      counts_at(heads_at + kRows * static_cast<int64_t>(sizeof(Head))),
      bytes(counts_at + (has_counts ? kRows * static_cast<int64_t>(sizeof(uint32_t)) : 0)) {}

FrozenRows::~FrozenRows() {
  slabs_.clear();
  // Pairs with has_readers(): what this thread has read comes before the next writes in place.
  if (is_over_) is_over_->store(true, std::memory_order_release);
}

RowStore::RowStore(int64_t row_bytes, bool with_counts)
    : layout_(row_bytes, with_counts), slab_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {}

std::shared_ptr<char> RowStore::make_slab() const {
  auto* const memory = static_cast<char*>(std::aligned_alloc(64, static_cast<std::size_t>(layout_.bytes)));
  if (!memory) throw std::bad_alloc();
  slab_bytes_->fetch_add(layout_.bytes, std::memory_order_relaxed);
  return {memory, [live = slab_bytes_, bytes = layout_.bytes](char* slab) {
            std::free(slab);
            live->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

bool RowStore::has_readers() {
  if (readers_.empty()) return false;
  std::erase_if(readers_, [](const auto& is_over) { return is_over->load(std::memory_order_acquire); });
  if (readers_.empty()) std::ranges::fill(is_frozen_, 0);
  return !readers_.empty();
}

void RowStore::thaw(std::size_t slab) {
  if (!has_readers()) return;
  std::shared_ptr<char> copy = make_slab();
  std::memcpy(copy.get(), starts_[slab], static_cast<std::size_t>(layout_.bytes));
  starts_[slab] = copy.get();
  slabs_[slab] = std::move(copy);
  is_frozen_[slab] = 0;
}

uint32_t RowStore::add(int64_t id, uint64_t hash) {
  const auto place = static_cast<uint32_t>(size_);
  if (size_ % SlabLayout::kRows == 0) {
    slabs_.push_back(make_slab());
    starts_.push_back(slabs_.back().get());
    is_frozen_.push_back(0);
  }
  const Writable row = write(place);
  layout_.id(slab(place), place) = id;
  *row.position = 0;
  if (row.count) *row.count = 0;
  index_.insert(hash, place);
  ++size_;
  return place;
}

void RowStore::remove(uint32_t place, uint64_t hash, uint64_t last_hash) {
  const auto last = static_cast<uint32_t>(size_ - 1);
  index_.erase(hash, place);
  if (place != last) {
    index_.move(last_hash, last, place);
    const Writable to = write(place);
    std::memcpy(to.values, values(last), static_cast<std::size_t>(layout_.value_bytes));
    layout_.id(slab(place), place) = id(last);
    *to.position = position(last);
    if (to.count) *to.count = count(last);
  }
  --size_;
  if (size_ % SlabLayout::kRows == 0) {
    slabs_.pop_back();
    starts_.pop_back();
    is_frozen_.pop_back();
  }
}

FrozenRows RowStore::freeze() {
  has_readers();
  std::ranges::fill(is_frozen_, 1);
  readers_.push_back(std::make_shared<std::atomic<bool>>(false));
  return {layout_, slabs_, size_, readers_.back()};
}

int64_t RowStore::bytes() const {
  const std::size_t lists = slabs_.capacity() * sizeof(slabs_[0]) + starts_.capacity() * sizeof(starts_[0]) +
                            is_frozen_.capacity() * sizeof(is_frozen_[0]);
  return slab_bytes_->load(std::memory_order_relaxed) + index_.bytes() + static_cast<int64_t>(lists);
}

int64_t RowStore::bytes_with(int64_t more) const {
  const int64_t slabs = (size_ + more + SlabLayout::kRows - 1) / SlabLayout::kRows;
  return slabs * layout_.bytes + std::max(index_.bytes(), RowIndex::bytes_for(size_ + more));
}

}  // namespace lockstep::internal::server
