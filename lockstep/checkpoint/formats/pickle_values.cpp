#include "lockstep/checkpoint/formats/pickle_values.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/formats/pickle_objects.h"
#include "lockstep/checkpoint/formats/pickle_stack.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& what) : stack_(bytes, what) {}

  PickleValues run() && {
    while (!stopped_) step(static_cast<unsigned char>(stack_.take(1).front()));
    const Value& root = stack_.only();
    if (root.kind != Kind::kDict && root.kind != Kind::kTensor && root.kind != Kind::kList &&
        root.kind != Kind::kTuple) {
      stack_.fail(fmt::format("is of type '{}', and no dictionary of tensors", type_text(root)));
    }
    return std::move(stack_).values();
  }

 private:
  void tuple_of(std::size_t count) {
    std::vector<std::size_t> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = stack_.pop();
    stack_.push(Kind::kTuple).items = std::move(items);
  }
  void set_items(const std::vector<std::size_t>& items) {
    Value& dict = stack_.top();
    if (dict.kind == Kind::kOpaque) become(dict, Kind::kDict);  // its class derives from dict
    if (dict.kind != Kind::kDict || items.size() % 2 != 0) stack_.fail("sets items of something that is no dictionary");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }
  void append(const std::vector<std::size_t>& items) {
    Value& list = stack_.top();
    if (list.kind == Kind::kOpaque) become(list, Kind::kList);  // its class derives from list
    if (list.kind != Kind::kList) stack_.fail("appends to something that is no list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  static void become(Value& value, Kind kind) {
    value.kind = kind;
    value.items.clear();
  }
  void add(const std::vector<std::size_t>& items) {
    Value& set = stack_.top();
    if (set.kind != Kind::kOpaque) stack_.fail("adds to something that is no set");
    set.items.insert(set.items.end(), items.begin(), items.end());
  }
  void global() {
    const std::string module = stack_.line();
    push_name(stack_, module, stack_.line());
  }
  void global_of_stack() {
    const std::size_t name = stack_.pop();
    const std::size_t module = stack_.pop();
    if (stack_[name].kind != Kind::kText || stack_[module].kind != Kind::kText) {
      stack_.fail("has something else in place of a name");
    }
    push_name(stack_, stack_[module].text, stack_[name].text);
  }
  void long_integer(uint64_t size) {
    if (size > 8) {  // it can be no size and no key, so that its value does not matter
      stack_.take(size);
      stack_.push_opaque("int");
      return;
    }
    uint64_t value = stack_.number(size);
    if (size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * size);
    stack_.push_integer(static_cast<int64_t>(value));
  }
  void integer_of_line() {
    std::string text = stack_.line();
    if (text == "00" || text == "01") {
      stack_.push(Kind::kBool).integer = text == "01" ? 1 : 0;
      return;
    }
    if (text.ends_with('L')) text.pop_back();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) {
      stack_.push_integer(value);
    } else {
      stack_.push_opaque("int");
    }
  }
  /// Big-endian.
  void real() {
    uint64_t bits = 0;
    for (const char byte : stack_.take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    stack_.push_real(std::bit_cast<double>(bits));
  }
  void push_text(uint64_t size) { stack_.push(Kind::kText).text = stack_.take(size); }
  void push_bytes(uint64_t size) {
    stack_.take(size);
    stack_.push_opaque("bytes");
  }
  void tuple_above_mark() {
    std::vector<std::size_t> items = stack_.above_mark();
    stack_.push(Kind::kTuple).items = std::move(items);
  }
  void object_above_mark() {
    std::vector<std::size_t> items = stack_.above_mark();
    if (items.empty()) stack_.fail("makes an object of no class");
    const std::size_t type = items.front();
    items.erase(items.begin());
    push_object(stack_, type, std::move(items));
  }
  void object_of_line() {
    std::vector<std::size_t> items = stack_.above_mark();
    global();
    push_object(stack_, stack_.pop(), std::move(items));
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const uint64_t protocol = stack_.number(1);
        if (protocol > 5) stack_.fail(fmt::format("is of pickle's protocol {}", protocol));
        break;
      }
      case 0x95: stack_.take(8); break;  // FRAME
      case '.': stopped_ = true; break;
      case '(': stack_.push(Kind::kMark); break;
      case '0': stack_.pop(); break;
      case '1': stack_.above_mark(); break;
      case '2': stack_.push_again(stack_.top_index()); break;
      case '}': stack_.push(Kind::kDict); break;
      case ']': stack_.push(Kind::kList); break;
      case ')': stack_.push(Kind::kTuple); break;
      case 0x8f: stack_.push_opaque("set"); break;
      case 'N': stack_.push(Kind::kNothing); break;
      case 0x88: stack_.push(Kind::kBool).integer = 1; break;
      case 0x89: stack_.push(Kind::kBool); break;
      case 'K': stack_.push_integer(static_cast<int64_t>(stack_.number(1))); break;
      case 'M': stack_.push_integer(static_cast<int64_t>(stack_.number(2))); break;
      case 'J': stack_.push_integer(static_cast<int32_t>(stack_.number(4))); break;
      case 0x8a: long_integer(stack_.number(1)); break;
      case 0x8b: long_integer(stack_.number(4)); break;
      case 'I':
      case 'L': integer_of_line(); break;
      case 'F': stack_.line(), stack_.push_opaque("float"); break;
      case 'G': real(); break;
      case 'S':
      case 'V': stack_.push(Kind::kText).text = stack_.line(); break;
      case 0x8c:
      case 'U': push_text(stack_.number(1)); break;
      case 'X':
      case 'T': push_text(stack_.number(4)); break;
      case 0x8d: push_text(stack_.number(8)); break;
      case 'C': push_bytes(stack_.number(1)); break;
      case 'B': push_bytes(stack_.number(4)); break;
      case 0x8e:
      case 0x96: push_bytes(stack_.number(8)); break;
      case 0x97: stack_.push_opaque("a buffer"); break;
      case 0x98: break;  // READONLY_BUFFER
      case 0x82: stack_.take(1), stack_.push_opaque("a value of an extension"); break;
      case 0x83: stack_.take(2), stack_.push_opaque("a value of an extension"); break;
      case 0x84: stack_.take(4), stack_.push_opaque("a value of an extension"); break;
      case 'c': global(); break;
      case 0x93: global_of_stack(); break;
      case 't': tuple_above_mark(); break;
      case 0x85: tuple_of(1); break;
      case 0x86: tuple_of(2); break;
      case 0x87: tuple_of(3); break;
      case 'l': {
        std::vector<std::size_t> items = stack_.above_mark();
        stack_.push(Kind::kList).items = std::move(items);
        break;
      }
      case 'd': {
        const std::vector<std::size_t> items = stack_.above_mark();
        stack_.push(Kind::kDict);
        set_items(items);
        break;
      }
      case 0x91: {  // FROZENSET
        std::vector<std::size_t> items = stack_.above_mark();
        stack_.push_opaque("frozenset", std::move(items));
        break;
      }
      case 's': {
        const std::size_t value = stack_.pop();
        const std::size_t key = stack_.pop();
        set_items({key, value});
        break;
      }
      case 'u': set_items(stack_.above_mark()); break;
      case 'a': append({stack_.pop()}); break;
      case 'e': append(stack_.above_mark()); break;
      case 0x90: add(stack_.above_mark()); break;
      case 'p': stack_.remember(stack_.number_of_line()); break;
      case 'q': stack_.remember(stack_.number(1)); break;
      case 'r': stack_.remember(stack_.number(4)); break;
      case 0x94: stack_.remember_next(); break;
      case 'g': stack_.recall(stack_.number_of_line()); break;
      case 'h': stack_.recall(stack_.number(1)); break;
      case 'j': stack_.recall(stack_.number(4)); break;
      case 'P': stack_.line(), stack_.push_opaque("a persistent value"); break;
      case 'Q': push_storage(stack_); break;
      case 'R': push_result(stack_); break;
      case 0x81: {
        const std::size_t arguments = stack_.pop();
        push_object(stack_, stack_.pop(), {arguments});
        break;
      }
      case 0x92: {
        const std::size_t named = stack_.pop();
        const std::size_t arguments = stack_.pop();
        push_object(stack_, stack_.pop(), {arguments, named});
        break;
      }
      case 'o': object_above_mark(); break;
      case 'i': object_of_line(); break;
      case 'b': set_attributes(stack_); break;
      default: stack_.fail(fmt::format("has the opcode {:#04x}, which pickles do not have", opcode));
    }
  }

  PickleStack stack_;
  bool stopped_ = false;
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
