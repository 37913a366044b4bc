#include "lockstep/checkpoint/pickle.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "lockstep/checkpoint/strict_json.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

/// What the machine of a pickle has on its stack. Values refer to each other by index, so a cycle is no harm.
struct Value {
  enum class Kind : uint8_t {
    kNothing,
    kBool,
    kInteger,
    kReal,
    kText,
    kTuple,
    kList,
    kDict,
    kName,
    kStorage,
    kTensor,
    kMark
  };
  Kind kind = Kind::kNothing;
  int64_t integer = 0;
  std::string text = {};                             // of kText; "module name" of kName; of kStorage its key
  std::vector<std::size_t> items = {};               // of kTuple, kList; keys and values in turn of kDict
  std::shared_ptr<const PickledTensor> tensor = {};  // of kTensor and kStorage
};
using Kind = Value::Kind;

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  std::vector<PickledTensor> run() {
    while (!stopped_) step(static_cast<unsigned char>(take(1).front()));
    if (stack_.size() != 1 || (top().kind != Kind::kDict && top().kind != Kind::kTensor)) {
      fail("ends with something else than a dictionary");
    }
    find_ways_to_tensors();
    std::vector<PickledTensor> tensors;
    collect(stack_.back(), "", 0, tensors);
    return tensors;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError("LS-CHECKPOINT-DAMAGED", fmt::format("{} {}, at byte {} of its pickle", what_, problem, next_),
                    "get the file again, or save a dictionary of tensors: torch.save(model.state_dict(), file)");
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - next_) fail("ends too early");
    const std::string_view part = bytes_.substr(next_, size);
    next_ += size;
    return part;
  }
  uint64_t number(uint64_t size) {
    uint64_t value = 0;
    const std::string_view part = take(size);
    for (uint64_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(part[i])) << (8 * i);
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', next_);
    if (end == std::string_view::npos) fail("ends too early");
    const std::string text(take(end - next_));
    take(1);
    return text;
  }

  Value& push(Kind kind) {
    stack_.push_back(values_.size());
    values_.push_back({.kind = kind});
    return values_.back();
  }
  void push_integer(int64_t integer) { push(Kind::kInteger).integer = integer; }
  std::size_t pop() {
    if (stack_.empty()) fail("takes a value that is not there");
    const std::size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Value& top() {
    if (stack_.empty()) fail("takes a value that is not there");
    return values_[stack_.back()];
  }
  Value& popped(Kind kind, const char* expected) {
    Value& value = values_[pop()];
    if (value.kind != kind) fail(fmt::format("has something else in place of {}", expected));
    return value;
  }
  /// The values above the last mark, in order.
  std::vector<std::size_t> above_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && values_[stack_[mark - 1]].kind != Kind::kMark) --mark;
    if (mark == 0) fail("takes values up to a mark that is not there");
    std::vector<std::size_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  void tuple_of(std::size_t count) {
    std::vector<std::size_t> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(Kind::kTuple).items = std::move(items);
  }
  void set_items(const std::vector<std::size_t>& items) {
    Value& dict = top();
    if (dict.kind != Kind::kDict || items.size() % 2 != 0) fail("sets items of something that is no dictionary");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }
  void append(const std::vector<std::size_t>& items) {
    Value& list = top();
    if (list.kind != Kind::kList) fail("appends to something that is no list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void remember(uint64_t at) {
    top();
    memo_[at] = stack_.back();
  }
  void recall(uint64_t at) {
    const auto found = memo_.find(at);
    if (found == memo_.end()) fail("recalls a value that it has not remembered");
    stack_.push_back(found->second);
  }

  const Value& item(const Value& tuple, std::size_t i, Kind kind, const char* expected) const {
    if (i >= tuple.items.size() || values_[tuple.items[i]].kind != kind) {
      fail(fmt::format("has something else in place of {}", expected));
    }
    return values_[tuple.items[i]];
  }
  std::vector<int64_t> integers(const Value& tuple) const {
    if (tuple.items.size() > kMostPickledDimensions) fail("has a tensor of too many dimensions");
    std::vector<int64_t> result;
    for (std::size_t i = 0; i < tuple.items.size(); ++i) {
      result.push_back(item(tuple, i, Kind::kInteger, "a size").integer);
    }
    return result;
  }

  /// {'conj': True}: what PyTorch notes of a view in place of changing its elements.
  void read_bits(const Value& bits, PickledTensor& tensor) const {
    if (bits.kind == Kind::kNothing) return;
    if (bits.kind != Kind::kDict) fail("has something else in place of a tensor's bits");
    for (std::size_t i = 0; i + 1 < bits.items.size(); i += 2) {
      const std::string& name = item(bits, i, Kind::kText, "a bit's name").text;
      const bool is_set = item(bits, i + 1, Kind::kBool, "a bit").integer != 0;
      if (name == "conj") {
        tensor.is_conj = is_set;
      } else if (name == "neg") {
        tensor.is_neg = is_set;
      } else {
        fail(fmt::format("has a tensor with the unknown bit '{}'", shown(name)));
      }
    }
  }

  /// ('storage', torch.FloatStorage, '0', 'cpu', elements)
  void persistent() {
    const Value& id = popped(Kind::kTuple, "a storage");
    if (item(id, 0, Kind::kText, "a storage").text != "storage") fail("has a persistent value that is no storage");
    const std::string& type = item(id, 1, Kind::kName, "a storage's type").text;
    const std::string& key = item(id, 2, Kind::kText, "a storage's key").text;
    if (!type.starts_with("torch ") || type.size() > 64) fail(fmt::format("has a storage of type '{}'", shown(type)));
    if (key.size() > 64) fail("has a storage's key that is too long");
    PickledTensor tensor{
        .storage = key, .type = type.substr(6), .elements = item(id, 4, Kind::kInteger, "a storage's size").integer};
    push(Kind::kStorage).tensor = std::make_shared<PickledTensor>(std::move(tensor));
  }

  /// Calls nothing: gives the value that the named function of PyTorch would give.
  void reduce() {
    const Value& arguments = popped(Kind::kTuple, "arguments");
    const std::string& name = popped(Kind::kName, "a function").text;
    if (name == "collections OrderedDict") {
      if (!arguments.items.empty()) fail("gives arguments to OrderedDict");
      push(Kind::kDict);
    } else if (name == "torch._utils _rebuild_tensor_v2") {
      const Value& storage = item(arguments, 0, Kind::kStorage, "a storage");
      PickledTensor tensor = *storage.tensor;
      tensor.offset = item(arguments, 1, Kind::kInteger, "an offset").integer;
      tensor.shape = integers(item(arguments, 2, Kind::kTuple, "a shape"));
      tensor.strides = integers(item(arguments, 3, Kind::kTuple, "strides"));
      if (arguments.items.size() > 6) read_bits(values_[arguments.items[6]], tensor);
      push(Kind::kTensor).tensor = std::make_shared<PickledTensor>(std::move(tensor));
    } else if (name == "torch._utils _rebuild_parameter") {
      const auto tensor = item(arguments, 0, Kind::kTensor, "a parameter's tensor").tensor;
      push(Kind::kTensor).tensor = tensor;
    } else if (name == "torch.jit._pickle restore_type_tag" || name.starts_with("torch.jit._pickle build_")) {
      if (arguments.items.empty()) fail("gives no arguments");
      stack_.push_back(arguments.items.front());
    } else {
      fail(fmt::format("asks for a call of '{}', which is never made", shown(name)));
    }
  }

  void global() {
    const std::string module = line();
    const std::string name = line();
    push(Kind::kName).text = module + " " + name;
  }

  /// An object of torch::save's, which is its attributes.
  void new_object() {
    popped(Kind::kTuple, "arguments");
    const std::string& name = popped(Kind::kName, "a class").text;
    if (!name.starts_with("__torch__")) fail(fmt::format("makes an object of '{}'", shown(name)));
    push(Kind::kDict);
  }
  void build() {
    const Value& state = popped(Kind::kDict, "attributes");
    // Of an OrderedDict it is the attribute _metadata, which has versions of modules and nothing else.
    Value& object = top();
    if (object.kind != Kind::kDict) fail("gives attributes to something else");
    const bool is_metadata = state.items.size() == 2 && values_[state.items[0]].kind == Kind::kText &&
                             values_[state.items[0]].text == "_metadata";
    const std::vector<std::size_t> items = state.items;
    copied_ += items.size();
    if (copied_ > bytes_.size()) fail("gives the same attributes too often");
    if (!is_metadata) object.items.insert(object.items.end(), items.begin(), items.end());
  }

  void long_integer() {
    const uint64_t size = number(1);
    if (size > 8) {  // it can be no size and no key, so that its value does not matter
      take(size);
      push(Kind::kReal);
      return;
    }
    uint64_t value = number(size);
    if (size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * size);
    push_integer(static_cast<int64_t>(value));
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const uint64_t protocol = number(1);
        if (protocol > 3) fail(fmt::format("is of pickle's protocol {}", protocol));
        break;
      }
      case '.': stopped_ = true; break;
      case '(': push(Kind::kMark); break;
      case '}': push(Kind::kDict); break;
      case ']': push(Kind::kList); break;
      case ')': push(Kind::kTuple); break;
      case 'N': push(Kind::kNothing); break;
      case 0x88: push(Kind::kBool).integer = 1; break;
      case 0x89: push(Kind::kBool); break;
      case 'K': push_integer(static_cast<int64_t>(number(1))); break;
      case 'M': push_integer(static_cast<int64_t>(number(2))); break;
      case 'J': push_integer(static_cast<int32_t>(number(4))); break;
      case 0x8a: long_integer(); break;
      case 'G': take(8), push(Kind::kReal); break;
      case 'X': {  // BINUNICODE
        const uint64_t size = number(4);
        push(Kind::kText).text = take(size);
        break;
      }
      case 0x8c: {  // SHORT_BINUNICODE
        const uint64_t size = number(1);
        push(Kind::kText).text = take(size);
        break;
      }
      case 'c': global(); break;
      case 't': {
        std::vector<std::size_t> items = above_mark();
        push(Kind::kTuple).items = std::move(items);
        break;
      }
      case 0x85: tuple_of(1); break;
      case 0x86: tuple_of(2); break;
      case 0x87: tuple_of(3); break;
      case 's': {
        const std::size_t value = pop();
        const std::size_t key = pop();
        set_items({key, value});
        break;
      }
      case 'u': set_items(above_mark()); break;
      case 'a': append({pop()}); break;
      case 'e': append(above_mark()); break;
      case 'q': remember(number(1)); break;
      case 'r': remember(number(4)); break;
      case 'h': recall(number(1)); break;
      case 'j': recall(number(4)); break;
      case 'Q': persistent(); break;
      case 'R': reduce(); break;
      case 0x81: new_object(); break;
      case 'b': build(); break;
      default: fail(fmt::format("has the opcode {:#04x}, which no dictionary of tensors needs", opcode));
    }
  }

  static std::string joined(const std::string& prefix, const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
  }

  /// Finds the values in which there is a tensor, however deep.
  void find_ways_to_tensors() {
    std::vector<std::vector<std::size_t>> holders(values_.size());
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      for (const std::size_t item : values_[i].items) holders[item].push_back(i);
      if (values_[i].kind == Kind::kTensor) found.push_back(i);
    }
    leads_to_tensor_.assign(values_.size(), false);
    while (!found.empty()) {
      const std::size_t one = found.back();
      found.pop_back();
      if (leads_to_tensor_[one]) continue;
      leads_to_tensor_[one] = true;
      found.insert(found.end(), holders[one].begin(), holders[one].end());
    }
  }

  /// Adds the tensors of a dictionary, under their keys.
  void collect(std::size_t index, const std::string& prefix, int depth, std::vector<PickledTensor>& tensors) {
    constexpr int kDepth = 32;
    // Each visit stands for a byte at least, unless dictionaries are shared to make many of few.
    if (prefix.size() > kLongestPickledName) fail("has a name that is too long");
    if (depth > kDepth || ++visited_ > bytes_.size()) fail("nests dictionaries or lists too deep");
    const Value& value = values_[index];
    if (value.kind == Kind::kTensor) {
      // A tensor that is named many times is copied as often.
      constexpr std::size_t kCopiesOfAByte = 64;
      gathered_ += sizeof(PickledTensor) + prefix.size() + 16 * value.tensor->shape.size();
      if (gathered_ / kCopiesOfAByte > bytes_.size()) fail("names the same tensors too often");
      tensors.push_back(*value.tensor);
      tensors.back().name = prefix;
    }
    if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      // Most lists are of numbers, as long as one likes, and many keys may have one.
      if (!leads_to_tensor_[index]) return;
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        collect(value.items[i], joined(prefix, std::to_string(i)), depth + 1, tensors);
      }
    }
    if (value.kind != Kind::kDict) return;
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const Value& key = values_[value.items[i]];
      if (key.kind != Kind::kText && key.kind != Kind::kInteger) {
        if (!leads_to_tensor_[value.items[i + 1]]) continue;
        fail("has a tensor under a key that is neither a text nor a whole number");
      }
      const std::string name = key.kind == Kind::kText ? key.text : std::to_string(key.integer);
      collect(value.items[i + 1], joined(prefix, name), depth + 1, tensors);
    }
  }

  const std::string_view bytes_;
  const std::string& what_;
  std::size_t next_ = 0;
  bool stopped_ = false;
  std::deque<Value> values_;
  std::vector<std::size_t> stack_;
  std::map<uint64_t, std::size_t> memo_;
  std::vector<bool> leads_to_tensor_;  // by value: whether there is a tensor in it
  std::size_t visited_ = 0;
  std::size_t gathered_ = 0;  // bytes of tensors, copied for each of their names
  std::size_t copied_ = 0;
};

}  // namespace

std::vector<PickledTensor> tensors_of_pickle(std::string_view bytes, const std::string& what) {
  return Machine(bytes, what).run();
}

}  // namespace lockstep::internal
