// Data sets of torch::data as data sets of this library.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

namespace internal::inline data {

/// One torch::data example as a sample.
struct TorchExample {
  at::Tensor data;
  at::Tensor target;  // undefined where the data set has none
};
/// Stacks examples, which messages call by `ids`; those of no example have the shapes of `like`.
Batch stacked(const std::vector<TorchExample>& examples, std::span<const int64_t> ids,
              const std::optional<TorchExample>& like);
/// The rows of an example that has a row for each sample already.
Batch as_rows(const TorchExample& rows);
[[noreturn]] void throw_no_size();
/// Throws the UsageError of examples that are no tensors and were read without a collate function.
[[noreturn]] void throw_needs_collate(const std::type_info& example);

/// A number as LibTorch makes a tensor of it: integers are int64, others of the default dtype.
at::Tensor number_tensor(bool number);
at::Tensor number_tensor(int64_t number);
at::Tensor number_tensor(double number);

template <class T>
concept TensorOrNumber = std::is_convertible_v<const T&, at::Tensor> || std::is_arithmetic_v<T>;

/// An example that is a tensor, also an Example<Tensor, NoTarget>; or has one as its data, and one as its target, where
/// both may be numbers. Others, such as structs, need a collate function.
template <class Example>
concept TensorExample = std::is_convertible_v<const Example&, at::Tensor> || requires(const Example& example) {
  requires TensorOrNumber<std::remove_cvref_t<decltype((example.data))>>;
  requires TensorOrNumber<std::remove_cvref_t<decltype((example.target))>>;
};

template <class T>
at::Tensor tensor_or_number(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return number_tensor(value);
  } else if constexpr (std::is_integral_v<T>) {
    return number_tensor(static_cast<int64_t>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return number_tensor(static_cast<double>(value));
  } else {
    return value;
  }
}

template <class Example>
TorchExample torch_example(const Example& example) {
  if constexpr (std::is_convertible_v<const Example&, at::Tensor>) {
    return {example, {}};
  } else {
    return {tensor_or_number(example.data), tensor_or_number(example.target)};
  }
}

/// What a data set gives for one index: an element of get_batch()'s list, or where it gives no list, what it gives.
template <class Given>
struct ExampleOf {
  using type = Given;
};
template <class Given>
requires requires(Given& given) { *given.begin(); }
struct ExampleOf<Given> {
  using type = std::iter_value_t<decltype(std::declval<Given&>().begin())>;
};

template <class D>
concept MapStyle = requires(D& dataset, c10::ArrayRef<std::size_t> indices) {
  static_cast<bool>(dataset.size());
  static_cast<int64_t>(*dataset.size());
  dataset.get_batch(indices);
};

template <class D>
class TorchSource final : public lockstep::data::Source {
  using Given = std::remove_cvref_t<decltype(std::declval<D&>().get_batch(c10::ArrayRef<std::size_t>()))>;
  using Example = typename ExampleOf<Given>::type;
  static constexpr bool kGivesRows = std::is_same_v<Given, Example>;

 public:
  explicit TorchSource(std::shared_ptr<D> dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_->size();
    if (!size) throw_no_size();
    size_ = static_cast<int64_t>(*size);
  }
  int64_t size() const override { return size_; }
  std::string describe() const override { return std::to_string(size_) + " samples of a torch::data data set"; }
  Batch read(std::span<const int64_t> ids) const override {
    if constexpr (TensorExample<Example>) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ids.empty()) return stacked({}, {}, like());
      const auto examples = get(ids);
      if constexpr (kGivesRows) {
        return as_rows(torch_example(examples));
      } else {
        std::vector<TorchExample> all;
        for (const auto& example : examples) all.push_back(torch_example(example));
        return stacked(all, ids, std::nullopt);
      }
    } else {
      throw_needs_collate(typeid(Example));
    }
  }
  void require_batches() const override {
    if constexpr (!TensorExample<Example>) throw_needs_collate(typeid(Example));
  }
  std::optional<std::vector<AnySample>> read_as(const std::type_info& type,
                                                std::span<const int64_t> places) const override {
    if (type != typeid(Example)) return std::nullopt;
    std::vector<AnySample> all;
    if (places.empty()) return all;
    const std::lock_guard<std::mutex> lock(mutex_);
    if constexpr (kGivesRows) {
      for (const int64_t& place : places) all.push_back(std::make_shared<Example>(get({&place, 1})));
    } else {
      auto examples = get(places);
      for (auto&& one : examples) all.push_back(std::make_shared<Example>(std::move(one)));
    }
    return all;
  }

 private:
  /// Under the lock.
  Given get(std::span<const int64_t> ids) const {
    std::vector<std::size_t> indices;
    for (const int64_t id : ids) indices.push_back(static_cast<std::size_t>(id));
    return dataset_->get_batch(c10::ArrayRef<std::size_t>(indices));
  }
  /// An example, for the shapes of no example.
  std::optional<TorchExample> like() const {
    if (size_ == 0) return std::nullopt;
    if (like_) return like_;
    const int64_t first = 0;
    const auto examples = get({&first, 1});
    if constexpr (!kGivesRows) {
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

}  // namespace internal::data

namespace data {

/// A torch::data map-style data set: one with size() and get_batch(), as all that derive from
/// torch::data::datasets::Dataset or BatchDataset have, `.map(...)` included. A sample's input and target are an
/// example's `data` and `target`, tensors or numbers; where it has no target, the target has a row without elements.
/// Examples of any other type need a DistributeOptions::collate that takes them; where get_batch() gives no list, that
/// is what it gives for one index. The data set's functions are called by one thread at a time. Throws a UsageError
/// where its size() is not known.
template <class D>
Dataset from_torch(std::shared_ptr<D> dataset) {
  static_assert(internal::MapStyle<D>,
                "lockstep: from_torch takes a torch::data data set that is read by indices, with size() and "
                "get_batch(c10::ArrayRef<size_t>); read others by from_generator");
  if constexpr (internal::MapStyle<D>) {
    return Dataset(std::make_shared<internal::TorchSource<D>>(std::move(dataset)));
  } else {
    return {};
  }
}
template <class D>
Dataset from_torch(D dataset) {
  return from_torch(std::make_shared<D>(std::move(dataset)));
}

}  // namespace data
}  // namespace lockstep
