#include "lockstep/checkpoint/formats/pickle.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "lockstep/checkpoint/formats/pickle_values.h"
#include "lockstep/checkpoint/formats/strict_json.h"

namespace lockstep::internal::inline checkpoint {

namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

/// Finds by their names what the dictionaries, lists and tuples of a pickle hold.
class Collector {
 public:
  Collector(std::string_view bytes, const std::string& what)
      : size_(bytes.size()), what_(what), values_(values_in_pickle(bytes, what)) {}

  PickleContents contents() {
    find_ways_to_tensors();
    PickleContents found;
    collect(values_.root, "", 0, found);
    if (found.tensors.empty() && !found.passed_over.empty()) {
      const PickledObject& first = found.passed_over.front();
      fail(fmt::format("has tensors only in objects, which are not looked into: '{}' is of type '{}'",
                       shown(first.name), first.type));
    }
    return found;
  }

  std::map<std::string, PickledValue> values() {
    std::map<std::string, PickledValue> found;
    collect_values(values_.root, "", 0, found);
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw_bad_pickle(what_, problem, size_); }

  static std::string joined(const std::string& prefix, const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
  }

  /// Finds the values in which there is a tensor, however deep.
  void find_ways_to_tensors() {
    std::vector<std::vector<std::size_t>> holders(values_.all.size());
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < values_.all.size(); ++i) {
      for (const std::size_t item : values_.all[i].items) holders[item].push_back(i);
      if (values_.all[i].kind == Kind::kTensor) found.push_back(i);
    }
    leads_to_tensor_.assign(values_.all.size(), false);
    while (!found.empty()) {
      const std::size_t one = found.back();
      found.pop_back();
      if (leads_to_tensor_[one]) continue;
      leads_to_tensor_[one] = true;
      found.insert(found.end(), holders[one].begin(), holders[one].end());
    }
  }

  /// How a key stands in the name of a tensor; nothing for one that has no plain text.
  std::optional<std::string> text_of_key(const Value& key, int depth = 0) const {
    switch (key.kind) {
      case Kind::kText: return key.text;
      case Kind::kInteger: return std::to_string(key.integer);
      case Kind::kBool: return key.integer != 0 ? "True" : "False";
      case Kind::kNothing: return "None";
      case Kind::kReal: return fmt::format("{}", key.real);
      case Kind::kTuple: break;
      default: return std::nullopt;
    }
    constexpr int kDepth = 4;
    std::string text = "(";
    for (const std::size_t one : key.items) {
      const auto part = depth < kDepth ? text_of_key(values_.all[one], depth + 1) : std::nullopt;
      if (!part || text.size() > kLongestPickledName) return std::nullopt;
      text += (text.size() > 1 ? ", " : "") + *part;
    }
    return text + ")";
  }

  /// Each visit stands for a byte at least, unless dictionaries are shared to make many of few.
  void count_visit() {
    if (++visited_ > size_) fail("nests dictionaries or lists too deep");
  }
  void require_shallow(const std::string& name, int depth) const {
    constexpr int kDepth = 32;
    if (name.size() > kLongestPickledName) fail("has a name that is too long");
    if (depth > kDepth) fail("nests dictionaries or lists too deep");
  }

  /// Calls `one(index, name)` for each item of a list, a tuple or a dictionary, and `unnamed(key, value)` for one under
  /// a key without a text.
  template <class One, class Unnamed>
  void for_items(const Value& value, const std::string& prefix, const One& one, const Unnamed& unnamed) const {
    if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      for (std::size_t i = 0; i < value.items.size(); ++i) one(value.items[i], joined(prefix, std::to_string(i)));
    }
    if (value.kind != Kind::kDict) return;
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const Value& key = values_.all[value.items[i]];
      if (const auto text = text_of_key(key)) {
        one(value.items[i + 1], joined(prefix, *text));
      } else {
        unnamed(key, value.items[i + 1]);
      }
    }
  }

  /// Adds the tensors of a dictionary, under their keys. Looks at nothing that leads to no tensor: most lists are of
  /// numbers, as long as one likes, and many keys may have one.
  void collect(std::size_t index, const std::string& prefix, int depth, PickleContents& found) {
    count_visit();
    if (!leads_to_tensor_[index]) return;
    require_shallow(prefix, depth);
    const Value& value = values_.all[index];
    if (value.kind == Kind::kTensor) {
      // A tensor that is named many times is copied as often.
      constexpr std::size_t kCopiesOfAByte = 64;
      gathered_ += sizeof(PickledTensor) + prefix.size() + 16 * value.tensor->shape.size();
      if (gathered_ / kCopiesOfAByte > size_) fail("names the same tensors too often");
      found.tensors.push_back(*value.tensor);
      found.tensors.back().name = prefix;
      return;
    }
    if (value.kind == Kind::kOpaque) {
      found.passed_over.push_back({prefix, type_text(value)});
      return;
    }
    for_items(
        value, prefix, [&](std::size_t one, const std::string& name) { collect(one, name, depth + 1, found); },
        [&](const Value& key, std::size_t one) {
          if (!leads_to_tensor_[one]) return;
          found.passed_over.push_back({prefix, fmt::format("dict with a key of type {}", type_text(key))});
        });
  }

  void collect_values(std::size_t index, const std::string& prefix, int depth,
                      std::map<std::string, PickledValue>& found) {
    count_visit();
    require_shallow(prefix, depth);
    const Value& value = values_.all[index];
    if (value.kind == Kind::kBool) found[prefix] = value.integer != 0;
    if (value.kind == Kind::kInteger) found[prefix] = value.integer;
    if (value.kind == Kind::kReal) found[prefix] = value.real;
    if (value.kind == Kind::kText) found[prefix] = value.text;
    for_items(
        value, prefix, [&](std::size_t one, const std::string& name) { collect_values(one, name, depth + 1, found); },
        [](const Value&, std::size_t) {});
  }

  const std::size_t size_;  // of the pickle, in bytes
  const std::string& what_;
  const PickleValues values_;
  std::vector<bool> leads_to_tensor_;  // by value: whether there is a tensor in it
  std::size_t visited_ = 0;
  std::size_t gathered_ = 0;  // bytes of tensors, copied for each of their names
};

}  // namespace

PickleContents contents_of_pickle(std::string_view bytes, const std::string& what) {
  return Collector(bytes, what).contents();
}

std::map<std::string, PickledValue> values_of_pickle(std::string_view bytes, const std::string& what) {
  return Collector(bytes, what).values();
}

}  // namespace lockstep::internal::checkpoint
