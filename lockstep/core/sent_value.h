// A value of the program as bytes and tensors. One worker sends them to the others.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::internal::inline core {

/// Values that were put in come out in the same order, on a worker of the same build.
class SentValue {
 public:
  void put(const void* memory, std::size_t size) { bytes.append(static_cast<const char*>(memory), size); }
  void put(const at::Tensor& tensor) { tensors.push_back(tensor); }
  /// A PeerError where there are fewer bytes, or no tensor is left.
  void get(void* memory, std::size_t size);
  at::Tensor get_tensor();
  /// A PeerError for a byte that no bool has.
  bool get_bool();
  /// How many elements follow, each of at least one byte or tensor. A PeerError for more than there can be.
  std::size_t get_count();

  std::string bytes = {};
  std::vector<at::Tensor> tensors = {};

 private:
  std::size_t next_byte_ = 0;
  std::size_t next_tensor_ = 0;
};

/// How a T is sent: `put(sent, value)` and `get(sent)`. A type without them cannot be sent.
template <class T>
struct Sending {};

template <class T>
concept Sendable = requires(SentValue& sent, const T& value) {
  Sending<T>::put(sent, value);
  { Sending<T>::get(sent) } -> std::same_as<T>;
};

template <class T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct Sending<T> {
  static void put(SentValue& sent, const T& value) { sent.put(&value, sizeof value); }
  static T get(SentValue& sent) {
    T value{};
    if constexpr (std::is_same_v<T, bool>) {
      value = sent.get_bool();
    } else {
      sent.get(&value, sizeof value);
    }
    return value;
  }
};

template <>
struct Sending<at::Tensor> {
  static void put(SentValue& sent, const at::Tensor& value) { sent.put(value); }
  static at::Tensor get(SentValue& sent) { return sent.get_tensor(); }
};

template <>
struct Sending<std::string> {
  static void put(SentValue& sent, const std::string& value) {
    Sending<uint64_t>::put(sent, value.size());
    sent.put(value.data(), value.size());
  }
  static std::string get(SentValue& sent) {
    std::string value(sent.get_count(), '\0');
    sent.get(value.data(), value.size());
    return value;
  }
};

template <Sendable T>
struct Sending<std::vector<T>> {
  static void put(SentValue& sent, const std::vector<T>& values) {
    Sending<uint64_t>::put(sent, values.size());
    for (const T& value : values) Sending<T>::put(sent, value);
  }
  static std::vector<T> get(SentValue& sent) {
    const std::size_t count = sent.get_count();
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(Sending<T>::get(sent));
    return values;
  }
};

template <Sendable T, std::size_t N>
struct Sending<std::array<T, N>> {
  static void put(SentValue& sent, const std::array<T, N>& values) {
    for (const T& value : values) Sending<T>::put(sent, value);
  }
  static std::array<T, N> get(SentValue& sent) {
    std::array<T, N> values{};
    for (T& value : values) value = Sending<T>::get(sent);
    return values;
  }
};

template <Sendable T>
struct Sending<std::optional<T>> {
  static void put(SentValue& sent, const std::optional<T>& value) {
    Sending<bool>::put(sent, value.has_value());
    if (value) Sending<T>::put(sent, *value);
  }
  static std::optional<T> get(SentValue& sent) {
    if (!Sending<bool>::get(sent)) return std::nullopt;
    return Sending<T>::get(sent);
  }
};

template <Sendable A, Sendable B>
struct Sending<std::pair<A, B>> {
  static void put(SentValue& sent, const std::pair<A, B>& value) {
    Sending<A>::put(sent, value.first);
    Sending<B>::put(sent, value.second);
  }
  static std::pair<A, B> get(SentValue& sent) {
    A first = Sending<A>::get(sent);
    return {std::move(first), Sending<B>::get(sent)};
  }
};

template <Sendable... T>
struct Sending<std::tuple<T...>> {
  static void put(SentValue& sent, const std::tuple<T...>& value) {
    std::apply([&](const T&... one) { (Sending<T>::put(sent, one), ...); }, value);
  }
  static std::tuple<T...> get(SentValue& sent) { return std::tuple<T...>{Sending<T>::get(sent)...}; }
};

template <Sendable K, Sendable V>
struct Sending<std::map<K, V>> {
  static void put(SentValue& sent, const std::map<K, V>& values) {
    Sending<uint64_t>::put(sent, values.size());
    for (const auto& [key, value] : values) {
      Sending<K>::put(sent, key);
      Sending<V>::put(sent, value);
    }
  }
  static std::map<K, V> get(SentValue& sent) {
    const std::size_t count = sent.get_count();
    std::map<K, V> values;
    for (std::size_t i = 0; i < count; ++i) {
      K key = Sending<K>::get(sent);
      values.emplace(std::move(key), Sending<V>::get(sent));
    }
    return values;
  }
};

}  // namespace lockstep::internal::core
