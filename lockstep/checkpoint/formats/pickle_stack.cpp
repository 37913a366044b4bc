#include "lockstep/checkpoint/formats/pickle_stack.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace lockstep::internal::inline checkpoint {

std::string_view PickleStack::take(uint64_t size) {
  if (size > bytes_.size() - next_) fail("ends too early");
  const std::string_view part = bytes_.substr(next_, size);
  next_ += size;
  return part;
}

uint64_t PickleStack::number(uint64_t size) {
  uint64_t value = 0;
  const std::string_view part = take(size);
  for (uint64_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(part[i])) << (8 * i);
  return value;
}

std::string PickleStack::line() {
  const std::size_t end = bytes_.find('\n', next_);
  if (end == std::string_view::npos) fail("ends too early");
  const std::string text(take(end - next_));
  take(1);
  return text;
}

uint64_t PickleStack::number_of_line() {
  const std::string text = line();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail("has something else in place of a number");
  return value;
}

PickleValue& PickleStack::push(Kind kind) {
  stack_.push_back(values_.size());
  values_.push_back({.kind = kind});
  return values_.back();
}

PickleValue& PickleStack::push_opaque(std::string type, std::vector<std::size_t> items) {
  Value& value = push(Kind::kOpaque);
  value.text = std::move(type);
  value.items = std::move(items);
  return value;
}

std::size_t PickleStack::pop() {
  if (stack_.empty()) fail("takes a value that is not there");
  const std::size_t top = stack_.back();
  stack_.pop_back();
  return top;
}

PickleValue& PickleStack::top() { return values_[top_index()]; }

std::size_t PickleStack::top_index() {
  if (stack_.empty()) fail("takes a value that is not there");
  return stack_.back();
}

std::vector<std::size_t> PickleStack::above_mark() {
  std::size_t mark = stack_.size();
  while (mark > 0 && values_[stack_[mark - 1]].kind != Kind::kMark) --mark;
  if (mark == 0) fail("takes values up to a mark that is not there");
  std::vector<std::size_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
  stack_.resize(mark - 1);
  return items;
}

const PickleValue& PickleStack::item(const Value& tuple, std::size_t i, Kind kind, const char* expected) const {
  if (i >= tuple.items.size() || values_[tuple.items[i]].kind != kind) {
    fail(fmt::format("has something else in place of {}", expected));
  }
  return values_[tuple.items[i]];
}

void PickleStack::count_copied(std::size_t items) {
  copied_ += items;
  if (copied_ > bytes_.size()) fail("gives the same attributes too often");
}

void PickleStack::recall(uint64_t at) {
  const auto found = memo_.find(at);
  if (found == memo_.end()) fail("recalls a value that it has not remembered");
  push_again(found->second);
}

const PickleValue& PickleStack::only() const {
  if (stack_.size() != 1) fail("ends with something else than one value");
  return values_[stack_.back()];
}

}  // namespace lockstep::internal::checkpoint
