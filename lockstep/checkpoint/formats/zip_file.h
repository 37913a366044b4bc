// The entries of a zip file, as torch.save writes it.
//
// LibTorch has a reader of its own, caffe2::serialize::PyTorchStreamReader. It was tried, in 1.13 and 2.15, with files
// that were made to deceive, and believes more of a file. It does not compare an entry's bytes with its CRC-32: both
// versions give a stored entry with a changed byte without an error. It takes two entries of one name, and entries that
// lie over each other. It unpacks compressed entries: of a file of 2 MB it makes 2 GiB, before its caller can compare
// sizes, because 1.13 tells no size without reading. Its errors do not tell a damaged file from another failure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/checkpoint/folder/files.h"

namespace lockstep::internal::inline checkpoint {

/// Where an entry's bytes are in the file.
struct ZipEntry {
  uint64_t begin = 0;
  uint64_t size = 0;  // in the file
  uint32_t crc = 0;
  bool is_stored = false;  // otherwise it is compressed
  bool operator==(const ZipEntry&) const = default;
};

/// All entries by name. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` where the file is no zip file, is
/// in parts or encrypted, where an entry does not lie in it, or where two have one name or lie over each other.
std::map<std::string, ZipEntry> entries_of_zip(const OpenFile& file, const std::string& what);

}  // namespace lockstep::internal::checkpoint
