// Digests of numbers and texts, by which replicas and workers see that they do the same.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace lockstep::internal::inline core {

/// A number that differs where any of its inputs or their order differs, but for a chance of about 2^-64. It depends on
/// nothing but them, so workers may compare it. It is not for files: digests that a cursor or a cache keeps are made by
/// mixed() of data/deal/batch_rows.h, whose values files have. Bytes of tensors are digested by xxHash, which is
/// faster.
class Digest {
 public:
  constexpr explicit Digest(uint64_t seed = 0) : value_(seed) {}

  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) constexpr Digest with(T number) const {
    // The finaliser of SplitMix64: each bit of the input changes each of the result with a chance of a half.
    uint64_t x = (value_ ^ static_cast<uint64_t>(number)) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return Digest(x ^ (x >> 31));
  }
  /// By its bits: 0 and -0 differ.
  constexpr Digest with(double number) const { return with(std::bit_cast<uint64_t>(number)); }
  Digest with(std::string_view text) const {
    Digest digest = with(text.size());
    for (; !text.empty(); text.remove_prefix(text.size() < 8 ? text.size() : 8)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data(), text.size() < 8 ? text.size() : 8);
      digest = digest.with(word);
    }
    return digest;
  }
  /// Of each in turn, without their number.
  template <class Values>
  Digest with_all(const Values& values) const {
    Digest digest = *this;
    for (const auto& value : values) digest = digest.with(value);
    return digest;
  }

  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_;
};

}  // namespace lockstep::internal::core
