// A checkpoint's manifest: what is in it, in which file, and the checksum of every piece. docs/checkpoint-format.md
// describes the text. Nothing here knows tensors of LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/folder/pieces.h"

namespace lockstep::internal::inline checkpoint {

inline constexpr uint64_t kCheckpointFormat = 2;
inline constexpr std::size_t kManifestDepth = 64;  // the program's own values may nest
inline constexpr const char* kManifestName = "manifest.json";

/// Numbers of one item of a run's state: integers, or one real number.
struct RecordedNumbers {
  std::string kind = {};
  std::string name = {};
  std::vector<int64_t> integers = {};
  std::optional<double> real = std::nullopt;
  bool operator==(const RecordedNumbers&) const = default;
};

/// What a checkpoint says of its run, besides the tensors.
struct RunRecord {
  std::string library = {};      // Lockstep's version
  std::string platform = {};     // LibTorch and the machine, in words
  std::string fingerprint = {};  // of what equal bits depend on
  std::string strategy = {};
  int64_t replicas = 0;
  int64_t workers = 0;
  int64_t step = 0;
  uint64_t sequence = 0;  // counts the checkpoints of a folder in the order in which they were saved
  // What rounding depends on beside these; 0 and empty in checkpoints of earlier versions.
  int64_t threads_per_replica = 0;
  std::string denormals = {};  // "flushed" or "kept"
  std::vector<RecordedNumbers> numbers = {};
  std::map<std::string, std::string> data = {};    // tracked data sets: JSON by name
  std::map<std::string, std::string> values = {};  // the program's own values: JSON by name
  std::map<std::string, std::string> tables = {};  // of rows on parameter servers: JSON by name
  std::string scheduled = {};  // which scheduled steps count: JSON; empty where there are none, or all up to `step` do
  // Of variables that a module has under several names: by each name but the variable's own, the variable's.
  std::map<std::string, std::string> other_names = {};
  bool operator==(const RunRecord&) const = default;
};

struct RecordedFile {
  std::string name = {};
  uint64_t bytes = 0;
  std::string header_checksum = {};  // of everything before the tensors' elements
  bool operator==(const RecordedFile&) const = default;
};

struct RecordedTensor {
  std::string kind = {};
  std::string name = {};                    // the item's
  int64_t replica = -1;                     // whose value it is; -1: that of all
  uint64_t file = 0;                        // its index in `files`
  std::string key = {};                     // the tensor's name in that file
  std::string dtype = {};                   // LibTorch's name: "Float"
  std::vector<std::string> checksums = {};  // of its elements, piece by piece; at least one
  std::string aggregation = {};             // of an on-read variable: "mean"; empty where it was not recorded
  bool operator==(const RecordedTensor&) const = default;
};

struct Manifest {
  uint64_t format = kCheckpointFormat;
  uint64_t piece_bytes = kPieceBytes;  // of each piece of a tensor but its last, which may be shorter; at least 1
  RunRecord run = {};
  std::vector<RecordedFile> files = {};
  std::vector<RecordedTensor> tensors = {};
  bool operator==(const Manifest&) const = default;
};

/// The manifest's text, in the present format. Its first line has the checksum of everything after that line.
std::string encode_manifest(const Manifest& manifest);
/// Back again, from this format or an older one. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` for a text
/// that encode_manifest does not make, and LS-CHECKPOINT-VERSION for the text of a newer format.
Manifest decode_manifest(std::string_view text, const std::string& what);

}  // namespace lockstep::internal::checkpoint
