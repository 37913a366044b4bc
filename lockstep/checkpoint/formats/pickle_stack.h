// The stack of a pickle that is read: its bytes, the values that it has made so far, and those that it remembers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/formats/pickle_values.h"

namespace lockstep::internal::inline checkpoint {

/// Each member that reads or takes something throws the DataError of throw_bad_pickle() where it is not there.
class PickleStack {
 public:
  using Value = PickleValue;
  using Kind = PickleValue::Kind;

  /// Of these bytes; both arguments outlive it.
  PickleStack(std::string_view bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  [[noreturn]] void fail(const std::string& problem) const { throw_bad_pickle(what_, problem, next_); }

  // The bytes.

  std::string_view take(uint64_t size);
  /// Of `size` bytes, at most 8, the lowest first.
  uint64_t number(uint64_t size);
  /// Up to the end of the line, which is taken too.
  std::string line();
  uint64_t number_of_line();

  // The values. An index is the place of a value among all that were made.

  Value& push(Kind kind);
  Value& push_opaque(std::string type, std::vector<std::size_t> items = {});
  void push_real(double real) { push(Kind::kReal).real = real; }
  void push_integer(int64_t integer) { push(Kind::kInteger).integer = integer; }
  /// Once more.
  void push_again(std::size_t index) { stack_.push_back(index); }
  /// The index of the value on top, which is taken away.
  std::size_t pop();
  Value& top();
  std::size_t top_index();
  const Value& operator[](std::size_t index) const { return values_[index]; }
  /// The values above the last mark, in order. They and the mark are taken away.
  std::vector<std::size_t> above_mark();
  /// The i-th value of a tuple, which must be of this kind.
  const Value& item(const Value& tuple, std::size_t i, Kind kind, const char* expected) const;
  /// Bounds what copies of one value lead to by the size of the pickle.
  void count_copied(std::size_t items);

  // What the pickle remembers.

  void remember(uint64_t at) { memo_[at] = top_index(); }
  void remember_next() { remember(memo_.size()); }
  void recall(uint64_t at);

  /// The one value on the stack, which is what the pickle is.
  const Value& only() const;
  /// All values, with only() as their root.
  PickleValues values() && { return {std::move(values_), stack_.back()}; }

 private:
  const std::string_view bytes_;
  const std::string& what_;
  std::size_t next_ = 0;
  std::deque<Value> values_;
  std::vector<std::size_t> stack_;
  std::map<uint64_t, std::size_t> memo_;
  std::size_t copied_ = 0;
};

}  // namespace lockstep::internal::checkpoint
