// Digests of the files behind a data set: whether they have changed since a cursor was saved, and which one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::internal::inline data {

/// A digest of a file: its size, and its first, middle and last bytes; 0 where it cannot be read.
uint64_t digest_of_file(const std::string& path);

/// A digest of all bytes of a file that is small enough to be read twice; 0 where it cannot be read.
uint64_t digest_of_whole_file(const std::string& path);

/// A file of which all bytes are in memory.
lockstep::data::SourceFile file_in_memory(const std::string& path, std::string_view bytes);

/// A digest of all; 0 where one of them could not be read.
uint64_t digest_of(const std::vector<lockstep::data::SourceFile>& files);

/// The files of two data sets.
std::vector<lockstep::data::SourceFile> joined_files(std::vector<lockstep::data::SourceFile> first,
                                                     const std::vector<lockstep::data::SourceFile>& second);

/// Samples in memory that were read from these files; `choice` tells apart what can be read from the same files. At
/// least one file.
Dataset tensors_of_files(const at::Tensor& input, const at::Tensor& target,
                         std::vector<lockstep::data::SourceFile> files, uint64_t choice = 0);

/// Two sums of the files' digests, the second one weighted by the files' numbers: where one file has changed, the
/// quotient of the two changes is its number.
struct FilesDigest {
  explicit FilesDigest(const std::vector<lockstep::data::SourceFile>& files);
  uint64_t both = 0;  // 0 without files
  /// "'a.csv' has changed", of the files that `both` is of; `before` is what it was. At least one file.
  std::string changed_since(uint64_t before, const std::vector<lockstep::data::SourceFile>& files) const;
};

}  // namespace lockstep::internal::data
