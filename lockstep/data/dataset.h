// Data sets: collections of samples that can be read in any order.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/data/batch.h"

namespace lockstep {
namespace data {

/// A finite collection of samples that can be read in any order. Implement it for your own data.
class Source {
 public:
  virtual ~Source();
  /// The number of samples, at least 0.
  virtual int64_t size() const = 0;
  /// The samples `ids`, each in [0, size()), in that order: `input` and `target`, both [ids.size(), ...], also where
  /// `ids` is empty. `Batch::ids` may stay undefined. Several threads may call at once. An error of the library that it
  /// throws reaches the reader as it is; any other exception reaches the reader nested in a DataError.
  virtual Batch read(std::span<const int64_t> ids) const = 0;
  /// A few words that name the source in messages.
  virtual std::string describe() const = 0;
};

/// A handle to a source; copies refer to the same source. A default-constructed one is empty: its members throw a
/// UsageError.
class Dataset {
 public:
  Dataset() = default;
  explicit Dataset(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  /// The number of samples. Throws a DataError where the source gives a negative one.
  int64_t size() const;
  /// The samples `ids` in that order, with their `ids`; `global_size` is their number. Throws a UsageError for an id
  /// outside of [0, size()). An error of the library that the source throws reaches the caller as it is. Where the
  /// source throws another exception, does not give one row of input and of target for each id, or gives other ids, a
  /// DataError names it.
  Batch read(std::span<const int64_t> ids) const;
  /// All samples in order.
  Batch read_all() const;
  const std::shared_ptr<const Source>& source() const;

 private:
  std::shared_ptr<const Source> source_;
};

/// Sample i is (input[i], target[i]). Both are kept, not copied, and must not change afterwards. Throws a UsageError
/// unless both are dense, lie in the host's memory and have the same number of rows, which may be 0.
Dataset from_tensors(const at::Tensor& input, const at::Tensor& target);

/// The samples [begin, end) of another data set, numbered from 0. Throws a UsageError where it does not have them.
Dataset slice(const Dataset& dataset, int64_t begin, int64_t end);

}  // namespace data

using data::Dataset;

}  // namespace lockstep
