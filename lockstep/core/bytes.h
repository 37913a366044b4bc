// Bytes that workers send each other, or that a cache keeps: a writer, and two readers that never read past the end.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

/// What may be written as the bytes that it has in memory: a number, or a struct or an array of numbers without
/// padding. No pointer, and no bool: not every byte is one.
template <class T>
concept PlainBytes = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_same_v<T, bool> &&
                     (std::is_floating_point_v<T> || std::has_unique_object_representations_v<T>);

/// Appends to a string, which must outlive it. Numbers have the machine's byte order, as on all machines of a run.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& bytes) : bytes_(bytes) {}

  template <PlainBytes T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  /// The values of a vector, an array or a view, alone.
  template <std::ranges::contiguous_range Values>
  requires PlainBytes<std::ranges::range_value_t<Values>>
  void put_all(const Values& values) {
    const auto bytes = std::as_bytes(std::span(values.data(), values.size()));
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  /// How many they are, in 8 bytes, and the values.
  template <std::ranges::contiguous_range Values>
  requires PlainBytes<std::ranges::range_value_t<Values>>
  void put_list(const Values& values) {
    put(uint64_t{values.size()});
    put_all(values);
  }
  /// How long it is, in 8 bytes, and the text.
  void put_text(std::string_view text) {
    put(uint64_t{text.size()});
    bytes_.append(text);
  }

 private:
  std::string& bytes_;
};

/// Takes from the beginning of bytes, which belong to the caller and may be damaged. Where fewer are left than are
/// asked for, false; what has been taken then means nothing.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  std::string_view left() const { return left_; }
  bool at_end() const { return left_.empty(); }

  template <PlainBytes T>
  [[nodiscard]] bool get(T& value) {
    if (left_.size() < sizeof value) return false;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return true;
  }
  [[nodiscard]] bool get_bytes(uint64_t size, std::string_view& bytes) {
    if (left_.size() < size) return false;
    bytes = left_.substr(0, static_cast<std::size_t>(size));
    left_.remove_prefix(bytes.size());
    return true;
  }
  [[nodiscard]] bool get_text(std::string_view& text) {
    uint64_t size = 0;
    return get(size) && get_bytes(size, text);
  }

 private:
  std::string_view left_;
};

/// Reads what another worker has sent: a PeerError (LS-PEER-MESSAGE), which names the worker and what was to be read,
/// where the bytes are something else. No number in them decides an allocation beyond their own length.
class MessageReader {
 public:
  /// `what` completes "that cannot be read as ..."; like `remedy` it is a literal. Worker -1 is not known.
  MessageReader(std::string_view bytes, int64_t worker, const char* what,
                const char* remedy = "start all workers with the same version of Lockstep")
      : reader_(bytes), size_(bytes.size()), worker_(worker), what_(what), remedy_(remedy) {}

  std::string_view left() const { return reader_.left(); }
  bool at_end() const { return reader_.at_end(); }
  void expect_end() const { expect(at_end()); }
  /// Refuses the message where something that was read cannot be.
  void expect(bool is_sound) const {
    if (!is_sound) refuse();
  }
  [[noreturn]] void refuse() const {
    const std::string who = worker_ < 0 ? "another worker" : "worker " + std::to_string(worker_);
    throw PeerError("LS-PEER-MESSAGE",
                    who + " sent " + std::to_string(size_) + " bytes that cannot be read as " + what_, remedy_,
                    {.worker = worker_, .noticed = PeerError::Noticed::kMessage});
  }

  template <PlainBytes T>
  T get() {
    T value{};
    expect(reader_.get(value));
    return value;
  }
  /// Refers to the bytes of the message.
  std::string_view get_bytes(uint64_t size) {
    std::string_view bytes;
    expect(reader_.get_bytes(size, bytes));
    return bytes;
  }
  std::string_view get_text() { return get_bytes(get<uint64_t>()); }
  /// How many things follow, of which each has at least so many bytes, which are not 0.
  template <std::unsigned_integral Count = uint64_t>
  std::size_t get_count(std::size_t bytes_of_each) {
    const auto count = get<Count>();
    expect(count <= left().size() / bytes_of_each);
    return static_cast<std::size_t>(count);
  }
  /// What put_list() has written.
  template <PlainBytes T>
  std::vector<T> get_list() {
    return get_values<T>(get_count(sizeof(T)));
  }
  /// All that is left.
  template <PlainBytes T>
  std::vector<T> get_rest() {
    expect(left().size() % sizeof(T) == 0);
    return get_values<T>(left().size() / sizeof(T));
  }

 private:
  template <class T>
  std::vector<T> get_values(std::size_t count) {
    const std::string_view bytes = get_bytes(count * sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  ByteReader reader_;
  const std::size_t size_;
  const int64_t worker_;
  const char* const what_;
  const char* const remedy_;
};

}  // namespace lockstep::internal::core
