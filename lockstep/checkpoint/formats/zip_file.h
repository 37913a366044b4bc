// The entries of a zip file, as torch.save writes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/checkpoint/folder/files.h"

namespace lockstep::internal {

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

}  // namespace lockstep::internal
