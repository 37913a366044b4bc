// What a recording of a step holds for: the shapes of the tensors that the step is given, and all else that decides
// which operators it calls.
#pragma once

#include <ATen/core/TensorBody.h>

#include <bit>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/replica/tensors_in.h"

namespace lockstep::internal::inline capture {

/// The arguments of one replica's call of a step, in a form that can be compared, and their tensors.
class CaptureKey {
 public:
  void add(const at::Tensor& tensor);
  void add(const std::string& text);
  void add_number(int64_t number) { words_.push_back(number); }
  /// The step gets something of which nobody can say whether it is equal to another.
  void add_unknown(const std::type_info& type);
  /// The modes of the calling thread: gradients, autocast, and which keys of dispatch it has.
  void add_thread_modes();

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// The type of such an argument; empty where there is none.
  const std::string& unknown() const { return unknown_; }
  bool operator==(const CaptureKey& other) const { return words_ == other.words_ && texts_ == other.texts_; }
  /// "[16, 64] float, [16] long"
  std::string describe() const;
  /// Keeps no tensor.
  void forget_tensors() { tensors_.clear(); }

 private:
  std::vector<int64_t> words_;
  std::vector<std::string> texts_;
  std::vector<at::Tensor> tensors_;
  std::string unknown_;
};

/// Adds an argument of a step.
template <class T>
void add_to_key(CaptureKey& key, const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::string>) {
    key.add(value);
  } else if constexpr (std::is_same_v<T, Batch>) {
    for (const at::Tensor* one : {&value.input, &value.target, &value.ids}) key.add(*one);
    add_to_key(key, value.more);
    key.add_number(value.global_size);
    key.add_number(value.padding);
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    key.add_number(static_cast<int64_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    key.add_number(std::bit_cast<int64_t>(static_cast<double>(value)));
  } else if constexpr (NamesItsTensors<T>) {
    key.add_unknown(typeid(T));  // its other members are unknown
  } else if constexpr (Container<const T> || Dictionary<const T>) {
    int64_t count = 0;
    for (const auto& element : value) {
      ++count;
      if constexpr (Dictionary<const T>) {
        add_to_key(key, element.key());
        add_to_key(key, element.value());
      } else {
        add_to_key(key, element);
      }
    }
    key.add_number(count);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... each) { (add_to_key(key, each), ...); }, value);
  } else if constexpr (Optional<T>) {
    key.add_number(value.has_value() ? 1 : 0);
    if (value.has_value()) add_to_key(key, *value);
  } else if constexpr (HasDataAndTarget<T>) {
    add_to_key(key, value.data);
    add_to_key(key, value.target);
  } else {
    key.add_unknown(typeid(T));
  }
}

}  // namespace lockstep::internal::capture
