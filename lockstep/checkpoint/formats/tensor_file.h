// Tensors in safetensors files: writing them, and reading them one by one.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/formats/safetensors.h"

namespace lockstep::internal::inline checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// LibTorch's name of a dtype ("Float"), by which files and messages call it.
std::string dtype_name(at::ScalarType type);

/// How a file has a tensor: dtype and shape without a place. A complex tensor is stored as pairs of real numbers. A
/// UsageError for a dtype that safetensors does not have.
TensorPlace stored_form(const std::string& name, const at::Tensor& value);

/// Throws a UsageError where a tensor is not dense or not in the host's memory, is of a dtype that safetensors does not
/// have, or where a name stands twice or is not UTF-8.
void require_storable(const NamedTensors& tensors);

/// A tensor of this dtype and these sizes with the memory of one element: for layouts of what is not in memory.
at::Tensor tensor_of_form(at::ScalarType dtype, const std::vector<int64_t>& sizes);

/// A file that is not written yet.
struct FileLayout {
  std::string head = {};               // everything before the tensors' elements
  std::vector<uint64_t> offsets = {};  // where in the file the elements of each tensor begin, as the tensors were given
  uint64_t bytes = 0;
};
/// The UsageErrors of require_storable().
FileLayout layout_of(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata);

/// The memory of a tensor that is dense.
std::span<const std::byte> bytes_in(const at::Tensor& dense);

/// Writes a file and syncs it. The UsageErrors of require_storable(); then nothing was written.
void write_tensors(NewFile& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata);

/// The same file in memory, as a tensor of bytes, and back.
at::Tensor packed(const NamedTensors& tensors);
NamedTensors unpacked(const at::Tensor& bytes);

/// A file that is open. A DataError for one that is damaged; `what` begins its messages.
class TensorFile {
 public:
  TensorFile(std::unique_ptr<OpenFile> file, std::string what);

  const TensorFileHeader& header() const { return header_; }
  const std::string& header_checksum() const { return header_checksum_; }
  uint64_t size() const { return file_->size(); }
  /// Reads a tensor of header(), as LibTorch's dtype of this name, or as the one that the file's dtype stands for where
  /// the name is empty.
  at::Tensor read(const TensorPlace& place, const std::string& dtype) const;

  /// The same in three parts, of which the second may run on several threads: memory for the tensor, as it is stored;
  /// its bytes from `begin` to before `end`, with their checksum; and the tensor that it stands for.
  at::Tensor memory_for(const TensorPlace& place, const std::string& dtype) const;
  std::string read_bytes(const TensorPlace& place, const at::Tensor& memory, uint64_t begin, uint64_t end) const;
  /// Reads `to` from byte `begin` of the tensor on; gives its checksum.
  std::string read_bytes(const TensorPlace& place, uint64_t begin, std::span<std::byte> to) const;
  at::Tensor finished(const TensorPlace& place, const std::string& dtype, const at::Tensor& memory) const;

 private:
  std::string what_;
  std::unique_ptr<OpenFile> file_;
  TensorFileHeader header_;
  std::string header_checksum_;
  uint64_t data_begin_ = 0;
};

}  // namespace lockstep::internal::checkpoint
