// One value for each replica of this process.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "lockstep/core/ids.h"

namespace lockstep {

namespace internal::inline core {
/// Throws the UsageError of `PerReplica::operator[]`.
[[noreturn]] void throw_not_local(ReplicaId asked, ReplicaId first, std::size_t size);
}  // namespace internal::core

/// One value for each replica of this process, in replica order. With one replica it holds one value; it is never
/// unwrapped. It is a value type: copies are independent, and several threads may read one at the same time.
template <class T>
class PerReplica {
  struct Slot {  // keeps T = bool addressable, unlike std::vector<bool>
    T value;
  };
  template <class S, class V>
  class Iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = V*;
    using reference = V&;
    Iterator() = default;
    explicit Iterator(S* slot) : slot_(slot) {}
    V& operator*() const { return slot_->value; }
    V* operator->() const { return &slot_->value; }
    V& operator[](std::ptrdiff_t i) const { return slot_[i].value; }
    Iterator& operator++() { return *this += 1; }
    Iterator& operator--() { return *this += -1; }
    Iterator operator++(int) { return Iterator(slot_++); }
    Iterator operator--(int) { return Iterator(slot_--); }
    Iterator& operator+=(std::ptrdiff_t n) {
      slot_ += n;
      return *this;
    }
    Iterator& operator-=(std::ptrdiff_t n) { return *this += -n; }
    friend Iterator operator+(Iterator a, std::ptrdiff_t n) { return a += n; }
    friend Iterator operator+(std::ptrdiff_t n, Iterator a) { return a += n; }
    friend Iterator operator-(Iterator a, std::ptrdiff_t n) { return a -= n; }
    friend std::ptrdiff_t operator-(Iterator a, Iterator b) { return a.slot_ - b.slot_; }
    auto operator<=>(const Iterator&) const = default;

   private:
    S* slot_ = nullptr;
  };

 public:
  using value_type = T;
  using iterator = Iterator<Slot, T>;
  using const_iterator = Iterator<const Slot, const T>;

  PerReplica() = default;
  /// `values[i]` belongs to replica `first + i`; `first` is the first replica of this process.
  explicit PerReplica(std::vector<T> values, ReplicaId first = 0) : first_(first) {
    slots_.reserve(values.size());
    for (auto&& value : values) slots_.push_back(Slot{static_cast<T>(std::move(value))});
  }

  /// How many replicas this process has.
  std::size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }
  /// The lowest replica of this process.
  ReplicaId first_replica() const { return first_; }

  iterator begin() { return iterator(slots_.data()); }
  iterator end() { return iterator(slots_.data() + slots_.size()); }
  const_iterator begin() const { return const_iterator(slots_.data()); }
  const_iterator end() const { return const_iterator(slots_.data() + slots_.size()); }

  /// The value of one replica of this process; a UsageError for any other.
  T& operator[](ReplicaId id) { return slots_[index_of(id)].value; }
  const T& operator[](ReplicaId id) const { return slots_[index_of(id)].value; }

 private:
  std::size_t index_of(ReplicaId id) const {
    if (id < first_ || id - first_ >= static_cast<int64_t>(slots_.size())) {
      internal::throw_not_local(id, first_, slots_.size());
    }
    return static_cast<std::size_t>(id - first_);
  }

  std::vector<Slot> slots_;
  ReplicaId first_ = 0;
};

}  // namespace lockstep
