// Reads the values of a pickle: follows its opcodes and keeps every value, and runs nothing that the pickle names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/formats/pickle.h"

namespace lockstep::internal::inline checkpoint {

/// One value. Values refer to each other by index, so a cycle is no harm.
struct PickleValue {
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
    kOpaque,  // whatever else: nobody looks into it
    kMark
  };
  Kind kind = Kind::kNothing;
  bool is_object = false;  // of kDict: an object of torch::save's, whose items are its attributes
  int64_t integer = 0;
  double real = 0;
  std::string text = {};                             // of kText; "module.name" of kName and of kOpaque's class
  std::vector<std::size_t> items = {};               // of kTuple, kList, kOpaque; keys and values in turn of kDict
  std::shared_ptr<const PickledTensor> tensor = {};  // of kTensor and kStorage
};

/// All values of a pickle.
struct PickleValues {
  std::deque<PickleValue> all = {};
  std::size_t root = 0;  // the one that the pickle is
};

/// A DataError of contents_of_pickle() where the bytes are no pickle, and where they are none of a dictionary, a list,
/// a tuple or a tensor.
PickleValues values_in_pickle(std::string_view bytes, const std::string& what);

/// How Python calls a value's type.
std::string type_text(const PickleValue& value);

/// Throws the DataError (LS-CHECKPOINT-DAMAGED) of what is no pickle: "<what> <problem>, at byte <at> of its pickle".
[[noreturn]] void throw_bad_pickle(const std::string& what, const std::string& problem, std::size_t at);

}  // namespace lockstep::internal::checkpoint
