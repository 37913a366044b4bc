// Which tensors a pickle of torch.save describes. Nothing that a pickle asks for is run: only the few opcodes and names
// that build dictionaries of tensors are understood. Nothing here knows tensors of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

/// A tensor over a part of a storage. Nothing of it has been compared with the storage.
struct PickledTensor {
  std::string name = {};     // the dictionary's key; nested keys, and numbers in lists and tuples, are joined by dots
  std::string storage = {};  // the name of its bytes in the file: "0"
  std::string type = {};     // "FloatStorage"
  int64_t elements = 0;      // of the storage
  int64_t offset = 0;        // in elements
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};
  bool is_conj = false;  // the elements are the conjugates of those in the storage
  bool is_neg = false;   // and their negatives
  bool operator==(const PickledTensor&) const = default;
};

/// The longest name of a tensor, in bytes. What one value of a pickle may lead to is bounded, because a pickle can name
/// one value as often as it likes.
constexpr std::size_t kLongestPickledName = 1000;
/// The most dimensions of a tensor.
constexpr std::size_t kMostPickledDimensions = 64;

/// All tensors of a dictionary, of dictionaries, lists and tuples in it, and of the objects that torch::save of C++
/// writes. Numbers and texts in it are passed over. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` for
/// anything else.
std::vector<PickledTensor> tensors_of_pickle(std::string_view bytes, const std::string& what);

}  // namespace lockstep::internal
