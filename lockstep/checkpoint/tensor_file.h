// Tensors in safetensors files: writing them, and reading them one by one.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// LibTorch's name of a dtype ("Float"), by which files and messages call it.
std::string dtype_name(at::ScalarType type);

/// How a file has a tensor: dtype and shape without a place. A complex tensor is stored as pairs of real numbers. A
/// UsageError for a dtype that safetensors does not have.
TensorPlace stored_form(const std::string& name, const at::Tensor& value);

struct WrittenFile {
  uint64_t bytes = 0;
  std::string header_checksum = {};
  std::vector<std::string> checksums = {};  // of the tensors' elements, in the order of the tensors that were given
};

/// Throws a UsageError where a tensor is not dense or not in the host's memory, is of a dtype that safetensors does not
/// have, or where a name stands twice or is not UTF-8.
void require_storable(const NamedTensors& tensors);

/// Writes a file and syncs it. The UsageErrors of require_storable(); then nothing was written.
WrittenFile write_tensors(NewFile& file, const NamedTensors& tensors,
                          const std::map<std::string, std::string>& metadata);

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
  /// the name is empty. Sets `checksum` to that of its bytes.
  at::Tensor read(const TensorPlace& place, const std::string& dtype, std::string* checksum = nullptr) const;

 private:
  std::string what_;
  std::unique_ptr<OpenFile> file_;
  TensorFileHeader header_;
  std::string header_checksum_;
  uint64_t data_begin_ = 0;
};

}  // namespace lockstep::internal
