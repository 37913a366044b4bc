// Which tensors a pickle of torch.save describes. Nothing that a pickle asks for is run: only the few opcodes and names
// that build dictionaries of tensors are understood. Nothing here knows tensors of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

/// A tensor over a part of a storage. Nothing of it has been compared with the storage.
struct PickledTensor {
  std::string name = {};     // the dictionary's key; keys of nested dictionaries are joined by dots
  std::string storage = {};  // the name of its bytes in the file: "0"
  std::string type = {};     // "FloatStorage"
  int64_t elements = 0;      // of the storage
  int64_t offset = 0;        // in elements
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};
  bool operator==(const PickledTensor&) const = default;
};

/// All tensors of a dictionary, of nested ones, and of the objects that torch::save of C++ writes. Numbers, texts and
/// lists in it are passed over. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` for anything else.
std::vector<PickledTensor> tensors_of_pickle(std::string_view bytes, const std::string& what);

}  // namespace lockstep::internal
