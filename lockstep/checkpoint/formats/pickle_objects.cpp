#include "lockstep/checkpoint/formats/pickle_objects.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"

namespace lockstep::internal::inline checkpoint {

namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

bool is_dictionary(std::string_view name) {
  return name == "collections.OrderedDict" || name == "collections.defaultdict" || name == "collections.Counter" ||
         name == "builtins.dict" || name == "__builtin__.dict";
}

std::vector<int64_t> integers(PickleStack& stack, const Value& tuple) {
  if (tuple.items.size() > kMostPickledDimensions) stack.fail("has a tensor of too many dimensions");
  std::vector<int64_t> result;
  for (std::size_t i = 0; i < tuple.items.size(); ++i) {
    result.push_back(stack.item(tuple, i, Kind::kInteger, "a size").integer);
  }
  return result;
}

/// {'conj': True}: what PyTorch notes of a view in place of changing its elements.
void read_bits(PickleStack& stack, const Value& bits, PickledTensor& tensor) {
  if (bits.kind == Kind::kNothing) return;
  if (bits.kind != Kind::kDict) stack.fail("has something else in place of a tensor's bits");
  for (std::size_t i = 0; i + 1 < bits.items.size(); i += 2) {
    const std::string& name = stack.item(bits, i, Kind::kText, "a bit's name").text;
    const bool is_set = stack.item(bits, i + 1, Kind::kBool, "a bit").integer != 0;
    if (name == "conj") {
      tensor.is_conj = is_set;
    } else if (name == "neg") {
      tensor.is_neg = is_set;
    } else {
      stack.fail(fmt::format("has a tensor with the unknown bit '{}'", shown(name)));
    }
  }
}

void push_odd_tensor(PickleStack& stack, const std::string& maker) {
  stack.push(Kind::kTensor).tensor = std::make_shared<PickledTensor>(PickledTensor{.odd = maker});
}

void push_tensor(PickleStack& stack, const std::string& name, const Value& arguments) {
  if (!arguments.items.empty() && stack[arguments.items.front()].kind == Kind::kOpaque) {
    return push_odd_tensor(stack, stack[arguments.items.front()].text);  // of a storage that is none of PyTorch's
  }
  const Value& storage = stack.item(arguments, 0, Kind::kStorage, "a storage");
  PickledTensor tensor = *storage.tensor;
  tensor.offset = stack.item(arguments, 1, Kind::kInteger, "an offset").integer;
  tensor.shape = integers(stack, stack.item(arguments, 2, Kind::kTuple, "a shape"));
  tensor.strides = integers(stack, stack.item(arguments, 3, Kind::kTuple, "strides"));
  if (name.ends_with("_v3")) {  // its storage is of bytes, and the dtype is told here
    tensor.type = stack.item(arguments, 6, Kind::kName, "a dtype").text;
    if (tensor.type.size() > 64) stack.fail(fmt::format("has a tensor of type '{}'", shown(tensor.type)));
  }
  const std::size_t bits = name.ends_with("_v3") ? 7 : 6;
  if (arguments.items.size() > bits) read_bits(stack, stack[arguments.items[bits]], tensor);
  stack.push(Kind::kTensor).tensor = std::make_shared<PickledTensor>(std::move(tensor));
}

/// Of a dictionary's class, which may be given another dictionary, or a list of pairs.
void push_dictionary(PickleStack& stack, const Value& arguments) {
  std::vector<std::size_t> items;
  for (const std::size_t argument : arguments.items) {
    const Value& given = stack[argument];
    if (given.kind == Kind::kDict) items.insert(items.end(), given.items.begin(), given.items.end());
    if (given.kind != Kind::kList) continue;
    for (const std::size_t pair : given.items) {
      const std::vector<std::size_t>& both = stack[pair].items;
      const bool is_pair = stack[pair].kind == Kind::kTuple || stack[pair].kind == Kind::kList;
      if (!is_pair || both.size() != 2) stack.fail("makes a dictionary of something else than pairs");
      items.insert(items.end(), both.begin(), both.end());
    }
  }
  stack.count_copied(items.size());
  stack.push(Kind::kDict).items = std::move(items);
}

/// Pushes what the function `name` would give for these arguments.
void push_result_of(PickleStack& stack, const std::string& name, std::size_t index) {
  const Value& arguments = stack[index];
  if (is_dictionary(name)) {
    push_dictionary(stack, arguments);
  } else if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2" ||
             name == "torch._utils._rebuild_tensor_v3") {
    push_tensor(stack, name, arguments);
  } else if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
    const bool is_of_tensor = !arguments.items.empty() && stack[arguments.items.front()].kind == Kind::kTensor;
    if (is_of_tensor) {
      stack.push_again(arguments.items.front());
    } else {
      stack.push_opaque(name, {index});
    }
  } else if (name == "torch._tensor._rebuild_from_type_v2") {  // of a tensor with attributes of its own
    const std::string& inner = stack.item(arguments, 0, Kind::kName, "a function").text;
    stack.item(arguments, 2, Kind::kTuple, "arguments");
    if (inner == name) stack.fail("rebuilds a tensor by itself");
    push_result_of(stack, inner, arguments.items[2]);
  } else if (name.starts_with("torch._utils._rebuild_")) {
    push_odd_tensor(stack, name);
  } else if (name == "torch.Size" && !arguments.items.empty()) {
    stack.push_again(arguments.items.front());
  } else if (name == "torch.jit._pickle.restore_type_tag" || name.starts_with("torch.jit._pickle.build_")) {
    if (arguments.items.empty()) stack.fail("gives no arguments");
    stack.push_again(arguments.items.front());
  } else {
    stack.push_opaque(name, {index});
  }
}

}  // namespace

void push_storage(PickleStack& stack) {
  const std::size_t index = stack.pop();
  const Value& id = stack[index];
  if (id.kind != Kind::kTuple || id.items.empty() || stack[id.items.front()].text != "storage") {
    stack.push_opaque("a persistent value", {index});
    return;
  }
  const std::string& type = stack.item(id, 1, Kind::kName, "a storage's type").text;
  const std::string& key = stack.item(id, 2, Kind::kText, "a storage's key").text;
  if (type.size() > 64) stack.fail(fmt::format("has a storage of type '{}'", shown(type)));
  if (key.size() > 64) stack.fail("has a storage's key that is too long");
  PickledTensor tensor{.storage = key,
                       .type = type.starts_with("torch.") ? type.substr(type.rfind('.') + 1) : type,
                       .elements = stack.item(id, 4, Kind::kInteger, "a storage's size").integer};
  stack.push(Kind::kStorage).tensor = std::make_shared<PickledTensor>(std::move(tensor));
}

void push_result(PickleStack& stack) {
  const std::size_t arguments = stack.pop();
  const std::size_t function = stack.pop();
  if (stack[arguments].kind != Kind::kTuple) stack.fail("has something else in place of arguments");
  if (stack[function].kind != Kind::kName) {
    stack.push_opaque("a value of a call", {arguments});
  } else {
    push_result_of(stack, stack[function].text, arguments);
  }
}

void push_name(PickleStack& stack, std::string module, const std::string& name) {
  if (module.size() + name.size() > kLongestPickledName) stack.fail("names a class or function too long");
  stack.push(Kind::kName).text = std::move(module) + "." + name;
}

void push_object(PickleStack& stack, std::size_t type, std::vector<std::size_t> arguments) {
  const Value& name = stack[type];
  if (name.kind != Kind::kName) {
    stack.push_opaque("an object", std::move(arguments));
  } else if (name.text.starts_with("__torch__")) {
    stack.push(Kind::kDict).is_object = true;
  } else if (is_dictionary(name.text)) {
    stack.push(Kind::kDict);
  } else {
    stack.push_opaque(name.text, std::move(arguments));
  }
}

void set_attributes(PickleStack& stack) {
  const std::size_t index = stack.pop();
  const Value& state = stack[index];
  Value& object = stack.top();
  if (object.kind == Kind::kOpaque) object.items.push_back(index);
  if (!object.is_object) return;  // attributes of a dictionary, such as _metadata, are no items of it
  if (state.kind != Kind::kDict) stack.fail("has something else in place of attributes");
  const std::vector<std::size_t> items = state.items;
  stack.count_copied(items.size());
  object.items.insert(object.items.end(), items.begin(), items.end());
}

}  // namespace lockstep::internal::checkpoint
