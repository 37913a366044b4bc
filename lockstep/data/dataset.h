// Where samples come from.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lockstep/data/batch.h"

namespace lockstep {
namespace data {

/// A finite collection of samples that can be read in any order. Implement it for data of one's own.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// The samples `ids`, each in [0, size()), in that order: `input` and `target`, both [ids.size(), ...], also for
  /// none. Called from several threads at once. What it throws reaches the caller of epoch()'s iterator.
  virtual Batch read(std::span<const int64_t> ids) const = 0;
  /// What it is, in a few words, for messages.
  virtual std::string describe() const = 0;
};

/// A handle to a source; copies mean the same one.
class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  int64_t size() const { return source_->size(); }
  /// The samples `ids` in that order, with their `ids`; `global_size` is their number.
  Batch read(std::span<const int64_t> ids) const;
  /// All samples in order.
  Batch read_all() const;
  const std::shared_ptr<const Source>& source() const { return source_; }

 private:
  std::shared_ptr<const Source> source_;
};

/// Sample i is (input[i], target[i]). Both are kept, not copied, and must not change afterwards. A UsageError unless
/// they have equally many rows.
Dataset from_tensors(const at::Tensor& input, const at::Tensor& target);

/// The samples [begin, end) of another data set, numbered from 0.
Dataset slice(const Dataset& dataset, int64_t begin, int64_t end);

}  // namespace data

using data::Dataset;

}  // namespace lockstep
