// Which tensors a pickle of torch.save describes. Nothing that a pickle asks for is run: calls are understood where
// they build dictionaries and tensors, and what any other call or class would give is a value that nobody looks into.
// Nothing here knows tensors of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::internal::inline checkpoint {

/// A tensor over a part of a storage. Nothing of it has been compared with the storage.
struct PickledTensor {
  std::string name = {};     // the dictionary's key; nested keys, and numbers in lists and tuples, are joined by dots
  std::string storage = {};  // the name of its bytes in the file: "0"
  std::string type = {};     // "FloatStorage"; "torch.uint16" where the storage is of bytes
  int64_t elements = 0;      // of the storage
  int64_t offset = 0;        // in elements
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};
  bool is_conj = false;  // the elements are the conjugates of those in the storage
  bool is_neg = false;   // and their negatives
  std::string odd = {};  // of a tensor of another kind, what would make it: "torch._utils._rebuild_sparse_tensor"
  bool operator==(const PickledTensor&) const = default;
};

/// The longest name of a tensor, in bytes. What one value of a pickle may lead to is bounded, because a pickle can name
/// one value as often as it likes.
constexpr std::size_t kLongestPickledName = 1000;
/// The most dimensions of a tensor.
constexpr std::size_t kMostPickledDimensions = 64;

/// An object of a class that is not known here, or another value that has no names for what is in it, with tensors in
/// it that are not read.
struct PickledObject {
  std::string name = {};  // where it is, as a tensor's
  std::string type = {};  // "my.Ema"
  bool operator==(const PickledObject&) const = default;
};

struct PickleContents {
  std::vector<PickledTensor> tensors = {};
  std::vector<PickledObject> passed_over = {};
};

/// All tensors of a dictionary, a list or a tuple, of those in it, and of the objects that torch::save of C++ writes.
/// Everything else in it is passed over. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` for something that
/// is no such collection, for one whose tensors are all in objects that are passed over, and for what is no pickle.
PickleContents contents_of_pickle(std::string_view bytes, const std::string& what);

/// The numbers, truth values and texts of the same collections, by name. The same DataErrors.
using PickledValue = std::variant<bool, int64_t, double, std::string>;
std::map<std::string, PickledValue> values_of_pickle(std::string_view bytes, const std::string& what);

}  // namespace lockstep::internal::checkpoint
