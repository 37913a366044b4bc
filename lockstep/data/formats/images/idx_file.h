// A file of MNIST's IDX format (http://yann.lecun.com/exdb/mnist): a magic number that names dtype and dimensions,
// their sizes in big-endian, then the elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/formats/input.h"

namespace lockstep::internal::inline data {

/// The magic number of a file of bytes: its last digit is the number of dimensions.
enum class IdxKind : uint32_t { kImages = 0x00000803, kLabels = 0x00000801 };

struct IdxFile {
  std::vector<int64_t> sizes;
  std::string bytes;  // as many as the product of the sizes
};

/// Reads `input` to its end. Throws a DataError that names it where it is of another kind, is cut off, or has more than
/// its header says. Memory grows with what is read.
IdxFile read_idx_file(Input input, IdxKind kind);

}  // namespace lockstep::internal::data
