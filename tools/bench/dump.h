// Writes what a rival needs for the same computation, in files that any language reads.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace lockstep::tools {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Makes a folder where there is none; a DataError where that fails.
void make_folder(const std::string& folder);

/// Writes <folder>/<stem>.bin, the elements of all tensors in row-major order, one tensor after the other as the
/// machine has them, and <folder>/<stem>.json: a list of {name, dtype, shape, offset in bytes}.
void dump_tensors(const std::string& folder, const std::string& stem, const NamedTensors& tensors);

}  // namespace lockstep::tools
