// Finds the tensors in a value, at any depth: in standard containers, torch::OrderedDict, tuples, pairs, optionals,
// variants and torch::data::Example, and in structs that name their tensors. So each replica gets its own tensors from
// a merge function.
#pragma once

#include <ATen/core/TensorBody.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace lockstep::internal::inline replica {

template <class T>
concept TupleLike = requires {
  typename std::tuple_size<T>::type;
};

/// A type that can be iterated over by reference, and whose elements have another type.
template <class T>
concept Container = requires(T& value) {
  typename T::value_type;
  value.begin() != value.end();
  requires std::is_lvalue_reference_v<decltype(*value.begin())>;
  requires !std::is_same_v<typename T::value_type, T>;
};

/// A dictionary whose items have a key() and a value(): torch::OrderedDict.
template <class T>
concept Dictionary = requires(T& value) {
  value.begin() != value.end();
  value.begin()->key();
  requires std::is_lvalue_reference_v<decltype(value.begin()->value())>;
};

template <class T>
concept Optional = requires(T& value) {
  typename T::value_type;
  value.has_value();
  *value;
};

template <class T>
concept Variant = requires {
  typename std::variant_size<T>::type;
};

/// torch::data::Example, and what looks like it.
template <class T>
concept HasDataAndTarget = requires(T& value) {
  requires std::is_lvalue_reference_v<decltype((value.data))>;
  requires std::is_lvalue_reference_v<decltype((value.target))>;
};

/// A struct with a function `for_each_tensor(Struct&, fn)` beside it, which calls `fn` on each of its members that is a
/// tensor or has tensors.
template <class T>
concept NamesItsTensors = requires(T& value) {
  for_each_tensor(value, [](auto&) {});
};

/// Calls `fn(at::Tensor&)` on each tensor in `value`. It finds none in a type that it cannot look into.
template <class T, class Fn>
void visit_tensors([[maybe_unused]] T& value, [[maybe_unused]] const Fn& fn) {
  if constexpr (std::is_const_v<T> || std::is_arithmetic_v<T>) {
    return;  // such as the key of a map
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    fn(value);
  } else if constexpr (NamesItsTensors<T>) {
    for_each_tensor(value, [&](auto& member) { visit_tensors(member, fn); });
  } else if constexpr (Container<T>) {
    for (auto& element : value) visit_tensors(element, fn);
  } else if constexpr (Dictionary<T>) {
    for (auto& item : value) visit_tensors(item.value(), fn);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... each) { (visit_tensors(each, fn), ...); }, value);
  } else if constexpr (Optional<T>) {
    if (value.has_value()) visit_tensors(*value, fn);
  } else if constexpr (Variant<T>) {
    std::visit([&](auto& alternative) { visit_tensors(alternative, fn); }, value);
  } else if constexpr (HasDataAndTarget<T>) {
    visit_tensors(value.data, fn);
    visit_tensors(value.target, fn);
  }
}

/// A copy without gradient that shares no memory with `tensor`; an undefined tensor stays undefined.
at::Tensor own_copy(const at::Tensor& tensor);

/// Makes `tensor` one of its own: it has no gradient, and nothing else refers to it or to its memory. It is copied
/// unless that holds already. An undefined tensor stays undefined.
void make_own(at::Tensor& tensor);

/// A copy of `value` whose tensors share no memory with those of `value`.
template <class T>
T own_copy_of(const T& value) {
  T copy(value);
  visit_tensors(copy, [](at::Tensor& tensor) { tensor = own_copy(tensor); });
  return copy;
}

}  // namespace lockstep::internal::replica
