// What cache() keeps: elements that were read once, by number. They lie in memory, or in an ElementFile.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/data/batch.h"

namespace lockstep::internal::inline data {

/// Elements of a stream, or samples of a data set. Any thread.
class Elements {
 public:
  virtual ~Elements() = default;
  /// One more than the highest number; of a data set's file all samples, kept or not.
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
  int64_t size() const override;
  std::optional<Batch> find(int64_t i) const override;
  bool are_shared() const override { return true; }
  bool add(int64_t i, const Batch& element) override;
  bool finish() override { return true; }

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Batch>> all_;  // guarded by mutex_
};

/// Gives tensors the form in which they come back from what is kept, so that all passes have the same bits: LibTorch's
/// operators may add in another order where strides differ. They are without a graph, conjugate and negative views are
/// carried out, and they are contiguous; memory, but no file, keeps the strides of images whose channels come last.
/// Sparse tensors stay as they are.
void to_kept_form(Batch& element, bool is_kept_in_file);

}  // namespace lockstep::internal::data
