// The tensors of a sample as bytes: of each its name, dtype, sizes and elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline data {

/// One tensor. What it refers to belongs to the caller.
struct TensorBytes {
  std::string_view name;
  uint64_t dtype = 0;
  std::vector<int64_t> sizes = {};
  std::string_view elements = {};  // in row-major order
};

/// How many bytes an element of a dtype has; 0 where there is no such dtype.
using ElementSize = uint64_t (*)(uint64_t dtype);

/// Appends a tensor, which has a name.
void append(std::string& bytes, const TensorBytes& tensor);

/// The tensors that were appended, which refer to `bytes`; nothing where the bytes are something else. Each has a name,
/// a dtype, and as many elements as its sizes say. No number in the bytes decides an allocation beyond their own
/// length.
std::optional<std::vector<TensorBytes>> tensors_in(std::string_view bytes, ElementSize element_size);

}  // namespace lockstep::internal::data
