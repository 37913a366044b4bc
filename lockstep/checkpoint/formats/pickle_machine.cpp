#include "lockstep/checkpoint/formats/pickle_machine.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

bool is_dictionary(std::string_view name) {
  return name == "collections.OrderedDict" || name == "collections.defaultdict" || name == "collections.Counter" ||
         name == "builtins.dict" || name == "__builtin__.dict";
}

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  PickleValues run() {
    while (!stopped_) step(static_cast<unsigned char>(take(1).front()));
    if (stack_.size() != 1) fail("ends with something else than one value");
    const Kind kind = top().kind;
    if (kind != Kind::kDict && kind != Kind::kTensor && kind != Kind::kList && kind != Kind::kTuple) {
      fail(fmt::format("is of type '{}', and no dictionary of tensors", type_text(top())));
    }
    return {std::move(values_), stack_.back()};
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw_bad_pickle(what_, problem, next_); }

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
  Value& push_opaque(std::string type, std::vector<std::size_t> items = {}) {
    Value& value = push(Kind::kOpaque);
    value.text = std::move(type);
    value.items = std::move(items);
    return value;
  }
  void push_real(double real) { push(Kind::kReal).real = real; }
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
    if (value.kind != kind) fail(fmt::format("has {} in place of {}", type_text(value), expected));
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
    if (dict.kind == Kind::kOpaque) become(dict, Kind::kDict);  // its class derives from dict
    if (dict.kind != Kind::kDict || items.size() % 2 != 0) fail("sets items of something that is no dictionary");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }
  void append(const std::vector<std::size_t>& items) {
    Value& list = top();
    if (list.kind == Kind::kOpaque) become(list, Kind::kList);  // its class derives from list
    if (list.kind != Kind::kList) fail("appends to something that is no list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  static void become(Value& value, Kind kind) {
    value.kind = kind;
    value.items.clear();
  }
  void add(const std::vector<std::size_t>& items) {
    Value& set = top();
    if (set.kind != Kind::kOpaque) fail("adds to something that is no set");
    set.items.insert(set.items.end(), items.begin(), items.end());
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
    const std::size_t index = pop();
    const Value& id = values_[index];
    if (id.kind != Kind::kTuple || id.items.empty() || values_[id.items.front()].text != "storage") {
      push_opaque("a persistent value", {index});
      return;
    }
    const std::string& type = item(id, 1, Kind::kName, "a storage's type").text;
    const std::string& key = item(id, 2, Kind::kText, "a storage's key").text;
    if (type.size() > 64) fail(fmt::format("has a storage of type '{}'", shown(type)));
    if (key.size() > 64) fail("has a storage's key that is too long");
    PickledTensor tensor{.storage = key,
                         .type = type.starts_with("torch.") ? type.substr(type.rfind('.') + 1) : type,
                         .elements = item(id, 4, Kind::kInteger, "a storage's size").integer};
    push(Kind::kStorage).tensor = std::make_shared<PickledTensor>(std::move(tensor));
  }

  /// Calls nothing: gives the value that the named function would give, or one that nobody looks into.
  void reduce() {
    const std::size_t arguments = pop();
    const std::size_t function = pop();
    if (values_[arguments].kind != Kind::kTuple) fail("has something else in place of arguments");
    if (values_[function].kind != Kind::kName) {
      push_opaque("a value of a call", {arguments});
    } else {
      give(values_[function].text, arguments);
    }
  }
  void give(const std::string& name, std::size_t index) {
    const Value& arguments = values_[index];
    if (is_dictionary(name)) {
      push_dictionary(arguments);
    } else if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2" ||
               name == "torch._utils._rebuild_tensor_v3") {
      push_tensor(name, arguments);
    } else if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
      const bool is_of_tensor = !arguments.items.empty() && values_[arguments.items.front()].kind == Kind::kTensor;
      if (is_of_tensor) {
        stack_.push_back(arguments.items.front());
      } else {
        push_opaque(name, {index});
      }
    } else if (name == "torch._tensor._rebuild_from_type_v2") {  // of a tensor with attributes of its own
      const std::string& inner = item(arguments, 0, Kind::kName, "a function").text;
      item(arguments, 2, Kind::kTuple, "arguments");
      if (inner == name) fail("rebuilds a tensor by itself");
      give(inner, arguments.items[2]);
    } else if (name.starts_with("torch._utils._rebuild_")) {
      push_odd_tensor(name);
    } else if (name == "torch.Size" && !arguments.items.empty()) {
      stack_.push_back(arguments.items.front());
    } else if (name == "torch.jit._pickle.restore_type_tag" || name.starts_with("torch.jit._pickle.build_")) {
      if (arguments.items.empty()) fail("gives no arguments");
      stack_.push_back(arguments.items.front());
    } else {
      push_opaque(name, {index});
    }
  }

  /// Of a dictionary's class, which may be given another dictionary, or a list of pairs.
  void push_dictionary(const Value& arguments) {
    std::vector<std::size_t> items;
    for (const std::size_t argument : arguments.items) {
      const Value& given = values_[argument];
      if (given.kind == Kind::kDict) items.insert(items.end(), given.items.begin(), given.items.end());
      if (given.kind != Kind::kList) continue;
      for (const std::size_t pair : given.items) {
        const std::vector<std::size_t>& both = values_[pair].items;
        const bool is_pair = values_[pair].kind == Kind::kTuple || values_[pair].kind == Kind::kList;
        if (!is_pair || both.size() != 2) fail("makes a dictionary of something else than pairs");
        items.insert(items.end(), both.begin(), both.end());
      }
    }
    count_copied(items.size());
    push(Kind::kDict).items = std::move(items);
  }
  void count_copied(std::size_t items) {
    copied_ += items;
    if (copied_ > bytes_.size()) fail("gives the same attributes too often");
  }

  void push_odd_tensor(const std::string& maker) {
    push(Kind::kTensor).tensor = std::make_shared<PickledTensor>(PickledTensor{.odd = maker});
  }
  void push_tensor(const std::string& name, const Value& arguments) {
    if (!arguments.items.empty() && values_[arguments.items.front()].kind == Kind::kOpaque) {
      return push_odd_tensor(values_[arguments.items.front()].text);  // of a storage that is none of PyTorch's
    }
    const Value& storage = item(arguments, 0, Kind::kStorage, "a storage");
    PickledTensor tensor = *storage.tensor;
    tensor.offset = item(arguments, 1, Kind::kInteger, "an offset").integer;
    tensor.shape = integers(item(arguments, 2, Kind::kTuple, "a shape"));
    tensor.strides = integers(item(arguments, 3, Kind::kTuple, "strides"));
    if (name.ends_with("_v3")) {  // its storage is of bytes, and the dtype is told here
      tensor.type = item(arguments, 6, Kind::kName, "a dtype").text;
      if (tensor.type.size() > 64) fail(fmt::format("has a tensor of type '{}'", shown(tensor.type)));
    }
    const std::size_t bits = name.ends_with("_v3") ? 7 : 6;
    if (arguments.items.size() > bits) read_bits(values_[arguments.items[bits]], tensor);
    push(Kind::kTensor).tensor = std::make_shared<PickledTensor>(std::move(tensor));
  }

  /// Bounded, because objects without end may be made of one class, and each has its name.
  void push_name(std::string module, const std::string& name) {
    if (module.size() + name.size() > kLongestPickledName) fail("names a class or function too long");
    push(Kind::kName).text = std::move(module) + "." + name;
  }
  void global() {
    const std::string module = line();
    push_name(module, line());
  }
  void global_of_stack() {
    const std::size_t name = pop();
    const std::size_t module = pop();
    if (values_[name].kind != Kind::kText || values_[module].kind != Kind::kText) {
      fail("has something else in place of a name");
    }
    push_name(values_[module].text, values_[name].text);
  }

  /// An object of torch::save's is its attributes; one of a dictionary's class a dictionary; any other one is not
  /// looked into.
  void new_object(std::size_t type, std::vector<std::size_t> arguments) {
    const Value& name = values_[type];
    if (name.kind != Kind::kName) {
      push_opaque("an object", std::move(arguments));
    } else if (name.text.starts_with("__torch__")) {
      push(Kind::kDict).is_object = true;
    } else if (is_dictionary(name.text)) {
      push(Kind::kDict);
    } else {
      push_opaque(name.text, std::move(arguments));
    }
  }
  void build() {
    const std::size_t index = pop();
    const Value& state = values_[index];
    Value& object = top();
    if (object.kind == Kind::kOpaque) object.items.push_back(index);
    if (!object.is_object) return;  // attributes of a dictionary, such as _metadata, are no items of it
    if (state.kind != Kind::kDict) fail("has something else in place of attributes");
    const std::vector<std::size_t> items = state.items;
    count_copied(items.size());
    object.items.insert(object.items.end(), items.begin(), items.end());
  }

  void long_integer(uint64_t size) {
    if (size > 8) {  // it can be no size and no key, so that its value does not matter
      take(size);
      push_opaque("int");
      return;
    }
    uint64_t value = number(size);
    if (size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * size);
    push_integer(static_cast<int64_t>(value));
  }
  void integer_of_line() {
    std::string text = line();
    if (text == "00" || text == "01") {
      push(Kind::kBool).integer = text == "01" ? 1 : 0;
      return;
    }
    if (text.ends_with('L')) text.pop_back();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) {
      push_integer(value);
    } else {
      push_opaque("int");
    }
  }
  /// Big-endian.
  void real() {
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push_real(std::bit_cast<double>(bits));
  }
  void push_text(uint64_t size) { push(Kind::kText).text = take(size); }
  void push_bytes(uint64_t size) {
    take(size);
    push_opaque("bytes");
  }
  void tuple_above_mark() {
    std::vector<std::size_t> items = above_mark();
    push(Kind::kTuple).items = std::move(items);
  }
  void object_above_mark() {
    std::vector<std::size_t> items = above_mark();
    if (items.empty()) fail("makes an object of no class");
    const std::size_t type = items.front();
    items.erase(items.begin());
    new_object(type, std::move(items));
  }
  void object_of_line() {
    std::vector<std::size_t> items = above_mark();
    global();
    new_object(pop(), std::move(items));
  }
  uint64_t number_of_line() {
    const std::string text = line();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail("has something else in place of a number");
    return value;
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const uint64_t protocol = number(1);
        if (protocol > 5) fail(fmt::format("is of pickle's protocol {}", protocol));
        break;
      }
      case 0x95: take(8); break;  // FRAME
      case '.': stopped_ = true; break;
      case '(': push(Kind::kMark); break;
      case '0': pop(); break;
      case '1': above_mark(); break;
      case '2': top(), stack_.push_back(stack_.back()); break;
      case '}': push(Kind::kDict); break;
      case ']': push(Kind::kList); break;
      case ')': push(Kind::kTuple); break;
      case 0x8f: push_opaque("set"); break;
      case 'N': push(Kind::kNothing); break;
      case 0x88: push(Kind::kBool).integer = 1; break;
      case 0x89: push(Kind::kBool); break;
      case 'K': push_integer(static_cast<int64_t>(number(1))); break;
      case 'M': push_integer(static_cast<int64_t>(number(2))); break;
      case 'J': push_integer(static_cast<int32_t>(number(4))); break;
      case 0x8a: long_integer(number(1)); break;
      case 0x8b: long_integer(number(4)); break;
      case 'I':
      case 'L': integer_of_line(); break;
      case 'F': line(), push_opaque("float"); break;
      case 'G': real(); break;
      case 'S':
      case 'V': push(Kind::kText).text = line(); break;
      case 0x8c:
      case 'U': push_text(number(1)); break;
      case 'X':
      case 'T': push_text(number(4)); break;
      case 0x8d: push_text(number(8)); break;
      case 'C': push_bytes(number(1)); break;
      case 'B': push_bytes(number(4)); break;
      case 0x8e:
      case 0x96: push_bytes(number(8)); break;
      case 0x97: push_opaque("a buffer"); break;
      case 0x98: break;  // READONLY_BUFFER
      case 0x82: take(1), push_opaque("a value of an extension"); break;
      case 0x83: take(2), push_opaque("a value of an extension"); break;
      case 0x84: take(4), push_opaque("a value of an extension"); break;
      case 'c': global(); break;
      case 0x93: global_of_stack(); break;
      case 't': tuple_above_mark(); break;
      case 0x85: tuple_of(1); break;
      case 0x86: tuple_of(2); break;
      case 0x87: tuple_of(3); break;
      case 'l': {
        std::vector<std::size_t> items = above_mark();
        push(Kind::kList).items = std::move(items);
        break;
      }
      case 'd': {
        const std::vector<std::size_t> items = above_mark();
        push(Kind::kDict);
        set_items(items);
        break;
      }
      case 0x91: {  // FROZENSET
        std::vector<std::size_t> items = above_mark();
        push_opaque("frozenset", std::move(items));
        break;
      }
      case 's': {
        const std::size_t value = pop();
        const std::size_t key = pop();
        set_items({key, value});
        break;
      }
      case 'u': set_items(above_mark()); break;
      case 'a': append({pop()}); break;
      case 'e': append(above_mark()); break;
      case 0x90: add(above_mark()); break;
      case 'p': remember(number_of_line()); break;
      case 'q': remember(number(1)); break;
      case 'r': remember(number(4)); break;
      case 0x94: remember(memo_.size()); break;
      case 'g': recall(number_of_line()); break;
      case 'h': recall(number(1)); break;
      case 'j': recall(number(4)); break;
      case 'P': line(), push_opaque("a persistent value"); break;
      case 'Q': persistent(); break;
      case 'R': reduce(); break;
      case 0x81: {
        const std::size_t arguments = pop();
        new_object(pop(), {arguments});
        break;
      }
      case 0x92: {
        const std::size_t named = pop();
        const std::size_t arguments = pop();
        new_object(pop(), {arguments, named});
        break;
      }
      case 'o': object_above_mark(); break;
      case 'i': object_of_line(); break;
      case 'b': build(); break;
      default: fail(fmt::format("has the opcode {:#04x}, which pickles do not have", opcode));
    }
  }

  const std::string_view bytes_;
  const std::string& what_;
  std::size_t next_ = 0;
  bool stopped_ = false;
  std::deque<Value> values_;
  std::vector<std::size_t> stack_;
  std::map<uint64_t, std::size_t> memo_;
  std::size_t copied_ = 0;
};

}  // namespace

PickleValues values_in_pickle(std::string_view bytes, const std::string& what) { return Machine(bytes, what).run(); }

std::string type_text(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kNothing: return "None";
    case Kind::kBool: return "bool";
    case Kind::kInteger: return "int";
    case Kind::kReal: return "float";
    case Kind::kText: return "str";
    case Kind::kTuple: return "tuple";
    case Kind::kList: return "list";
    case Kind::kDict: return "dict";
    case Kind::kName: return "the class or function " + shown(value.text);
    case Kind::kStorage: return "a storage";
    case Kind::kTensor: return "torch.Tensor";
    case Kind::kOpaque: return shown(value.text);
    case Kind::kMark: break;
  }
  return "a mark";
}

void throw_bad_pickle(const std::string& what, const std::string& problem, std::size_t at) {
  throw DataError("LS-CHECKPOINT-DAMAGED", fmt::format("{} {}, at byte {} of its pickle", what, problem, at),
                  "get the file again, or save a dictionary of tensors: torch.save(model.state_dict(), file)");
}

}  // namespace lockstep::internal::checkpoint
