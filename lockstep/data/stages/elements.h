// What cache() keeps: elements that were read once, by number. They lie in memory, or in an ElementFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/data/deal/batch_copy.h"

namespace lockstep::internal::inline data {

/// Elements of a stream, or samples of a data set. Any thread.
class Elements {
 public:
  virtual ~Elements() = default;
  virtual int64_t size() const = 0;
  /// Element i, or nothing where it is not kept. Throws a DataError where it is damaged.
  virtual std::optional<Batch> find(int64_t i) const = 0;
  /// Whether find() gives the tensors that are kept themselves: who gives them on copies them first.
  virtual bool are_shared() const = 0;
};

/// Elements to which others are added until all are there.
class GrowingElements : public Elements {
 public:
  /// Keeps a copy, unless element i is there already. False where nothing is taken any more.
  virtual bool add(int64_t i, const Batch& element) = 0;
  /// Says that these were all. False where they could not be kept.
  virtual bool finish() = 0;
};

class ElementsInMemory final : public GrowingElements {
 public:
  int64_t size() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(all_.size());
  }
  std::optional<Batch> find(int64_t i) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = static_cast<std::size_t>(i);
    return place < all_.size() ? all_[place] : std::nullopt;
  }
  bool are_shared() const override { return true; }
  bool add(int64_t i, const Batch& element) override {
    Batch own = copied(element);  // a view would keep all rows that were read with it
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = static_cast<std::size_t>(i);
    if (place >= all_.size()) all_.resize(place + 1);
    if (!all_[place]) all_[place] = std::move(own);
    return true;
  }
  bool finish() override { return true; }

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Batch>> all_;  // guarded by mutex_
};

/// Gives tensors the strides with which they come back from what is kept, so that all passes have the same bits:
/// LibTorch's operators may add in another order where strides differ. A file keeps no strides; memory keeps those of
/// images whose channels come last.
void to_kept_form(Batch& element, bool is_kept_in_file);

}  // namespace lockstep::internal::data
