// The header of a safetensors file: which tensors it has, and where. Nothing here knows tensors of LibTorch.
//
// A file is 8 bytes with the length of the header, little-endian, the header, a JSON object, and the tensors' elements,
// row-major and little-endian.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline checkpoint {

/// One tensor of a file. Its bytes are those from `begin` to before `end`, counted from the end of the header.
struct TensorPlace {
  std::string name = {};
  std::string dtype = {};  // as the format names it: "F32"
  std::vector<int64_t> shape = {};
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const TensorPlace&) const = default;
};

struct TensorFileHeader {
  std::vector<TensorPlace> tensors = {};  // in the order of their bytes, without holes between them
  std::map<std::string, std::string> metadata = {};
  bool operator==(const TensorFileHeader&) const = default;
};

/// Bytes of an element; 0 for a dtype that the format does not have.
uint64_t element_size(std::string_view dtype);
/// Bytes of so many elements, or nothing where they are more than 64 bits count.
bool bytes_of(const std::vector<int64_t>& shape, uint64_t element_size, uint64_t& bytes);

/// The 8 bytes and the header. `begin` and `end` of the tensors are those that layout() gives.
std::string encode_header(const TensorFileHeader& header);
/// Sets `begin` and `end`: the tensors lie one behind the other.
void layout(TensorFileHeader& header);

/// How long the header of a file of `file_size` bytes is. `what` begins the message of a DataError
/// (LS-CHECKPOINT-DAMAGED), here and below.
inline constexpr uint64_t kLengthBytes = 8;
uint64_t header_length(std::span<const unsigned char, kLengthBytes> first, uint64_t file_size, const std::string& what);
/// The header without the 8 bytes. It must say of each byte of the `data_bytes` that follow whose it is.
TensorFileHeader decode_header(std::string_view json, uint64_t data_bytes, const std::string& what);

}  // namespace lockstep::internal::checkpoint
