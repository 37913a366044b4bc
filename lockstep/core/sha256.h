// SHA-256 of named tensors, by which two runs are compared.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The SHA-256, in hexadecimal, of named tensors in the order in which they are given. For each, in this order: the
/// name, the dtype's name ("Float") and the shape ("[2, 3]"), each ended by a zero byte, then the elements in row-major
/// logical order, little-endian.
std::string sha256_of(const std::vector<std::pair<std::string, at::Tensor>>& named);

}  // namespace lockstep
