// Data sets of torch::data as data sets of this library.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

namespace internal {

/// One torch::data example as a sample.
struct TorchExample {
  at::Tensor data;
  at::Tensor target;  // undefined where the data set has none
};
/// Stacks examples; those of no example have the shapes of `like`.
Batch stacked(const std::vector<TorchExample>& examples, const std::optional<TorchExample>& like);
/// The rows of an example that has a row for each sample already.
Batch as_rows(const TorchExample& rows);
[[noreturn]] void throw_no_size();

template <class Example>
TorchExample torch_example(const Example& example) {
  if constexpr (std::is_convertible_v<Example, at::Tensor>) {
    return {example, {}};  // also an Example<Tensor, NoTarget>
  } else {
    return {example.data, example.target};
  }
}

template <class D>
class TorchSource final : public data::Source {
 public:
  explicit TorchSource(std::shared_ptr<D> dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_->size();
    if (!size) throw_no_size();
    size_ = static_cast<int64_t>(*size);
  }
  int64_t size() const override { return size_; }
  std::string describe() const override { return std::to_string(size_) + " samples of a torch::data data set"; }
  Batch read(std::span<const int64_t> ids) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ids.empty()) return stacked({}, like());
    std::vector<std::size_t> indices;
    for (const int64_t id : ids) indices.push_back(static_cast<std::size_t>(id));
    auto examples = dataset_->get_batch(c10::ArrayRef<std::size_t>(indices));
    if constexpr (requires { examples.begin(); }) {
      std::vector<TorchExample> all;
      for (const auto& example : examples) all.push_back(torch_example(example));
      return stacked(all, std::nullopt);
    } else {
      return as_rows(torch_example(examples));
    }
  }

 private:
  /// An example, for the shapes of no example.
  std::optional<TorchExample> like() const {
    if (size_ == 0) return std::nullopt;
    if (like_) return like_;
    const std::size_t first = 0;
    auto examples = dataset_->get_batch(c10::ArrayRef<std::size_t>(first));
    if constexpr (requires { examples.begin(); }) {
      like_ = torch_example(*examples.begin());
    } else {
      const TorchExample rows = torch_example(examples);
      like_ = TorchExample{rows.data[0], rows.target.defined() ? rows.target[0] : rows.target};
    }
    return like_;
  }

  mutable std::mutex mutex_;  // get_batch() need not be safe on several threads
  const std::shared_ptr<D> dataset_;
  mutable std::optional<TorchExample> like_;  // guarded by mutex_
  int64_t size_ = 0;
};

}  // namespace internal

namespace data {

/// A torch::data map-style data set: one with size() and get_batch(), as all that derive from
/// torch::data::datasets::Dataset or BatchDataset have, `.map(...)` included. A sample's input and target are an
/// example's `data` and `target`; where it has no target, the target has a row without elements. Its functions are
/// called by one thread at a time. Throws a UsageError where its size() is not known.
template <class D>
Dataset from_torch(D dataset) {
  return Dataset(std::make_shared<internal::TorchSource<D>>(std::make_shared<D>(std::move(dataset))));
}
template <class D>
Dataset from_torch(std::shared_ptr<D> dataset) {
  return Dataset(std::make_shared<internal::TorchSource<D>>(std::move(dataset)));
}

}  // namespace data
}  // namespace lockstep
