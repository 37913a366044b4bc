// Files of records: lines of text, TensorFlow's TFRecord, and tar archives in WebDataset's convention.
// docs/data-formats.md says what of each format is read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/sources/records.h"

namespace at {
class Tensor;
}

namespace lockstep::data {

/// How records are read.
struct RecordOptions {
  int64_t max_bytes = int64_t{1} << 28;  // a larger record is a bad one: no length in a file decides about memory

  // Of tar_samples() only.
  /// How many samples of an archive may be incomplete at a time: the next file may belong to any of them. With 1 the
  /// files of a sample lie side by side. Where a file belongs to none of them, and there are this many, the one that
  /// began first is given. So a reader keeps up to this many samples in memory, and the names of all samples before.
  /// With more than 1, going to a place reads the archive from its beginning.
  int64_t window = 1;
  /// What each sample must have; it may have others. Without it, all samples have the fields that the first ones have:
  /// all those of the first 8 samples of the first archive that has any. An empty list: any fields.
  std::optional<std::vector<std::string>> fields = std::nullopt;
};

// Each function takes the files in the order given. A path with *, ? or [...] stands for all files that match, sorted
// by their bytes, and "part-{000..012}.tar" for a path for each number. A file that begins as one of gzip does is
// decompressed, whatever its name; offsets then count what is compressed in it, and opening it at a place reads what
// lies before again. A UsageError names an empty list and options that are out of range, a DataError a pattern that
// nothing matches, a file that is not there, and one that is compressed in another way. What is wrong with a single
// record is a DataError LS-DATA-RECORD of next(). Where a file is cut off or damaged, next() gives all records before
// that place, and then the error; where it says that the rest cannot be read, next() gives false from then on.

/// Each line is a record, without its end, "\n" or "\r\n"; an empty line is one too. The last line may have no end.
std::shared_ptr<const RecordFiles> lines(const std::vector<std::string>& paths, const RecordOptions& options = {});

/// TFRecord files. Both checksums of each record are compared.
std::shared_ptr<const RecordFiles> tf_records(const std::vector<std::string>& paths, const RecordOptions& options = {});

/// Tar archives (ustar, GNU's and pax' long names). Files that lie side by side and have one name up to its first dot
/// form a sample: "a/7.jpg" and "a/7.cls" are the fields "jpg" and "cls" of the sample "a/7". A name may begin with
/// "./" or not. A sample that lacks a field, or has one that the others do not have, is a bad record, and so is a file
/// that comes for a sample of its archive that was given before: the message names both places. Files without a dot in
/// their last name, hidden ones and what file managers leave ("._7.jpg", "Thumbs.db", all in "__MACOSX") belong to no
/// sample and are passed over, as are folders and links. The record is what parse_tar_sample() takes apart.
std::shared_ptr<const RecordFiles> tar_samples(const std::vector<std::string>& paths,
                                               const RecordOptions& options = {});

/// A sample of a tar archive.
struct TarSample {
  std::string key = {};                            // "a/7"
  std::map<std::string, std::string> fields = {};  // "jpg" to the file's bytes; the names in lower case
};

/// The sample that a record of tar_samples() holds. Throws a DataError where it is no such record.
TarSample parse_tar_sample(std::string_view record);
/// The record of a sample: what parse_tar_sample() gives back.
std::string make_tar_sample(const TarSample& sample);

/// A feature of a tf.train.Example: one of three lists.
struct TfFeature {
  enum class Kind : uint8_t { kNone, kBytes, kFloats, kInts };
  Kind kind = Kind::kNone;
  std::vector<std::string> bytes = {};
  std::vector<float> floats = {};
  std::vector<int64_t> ints = {};
  bool operator==(const TfFeature&) const = default;
};

/// A tf.train.Example: its features by name.
using TfExample = std::map<std::string, TfFeature>;

/// Reads a tf.train.Example in protobuf's wire format. Fields that are not known are passed over. Throws a DataError
/// with the offset where the bytes are no such message.
TfExample parse_tf_example(std::string_view record);

/// The feature's list as a tensor: float32 [n], int64 [n], or, of bytes, uint8 [n], where the list has exactly one
/// value. Throws a DataError for another number of values and for a feature without a list.
at::Tensor tensor_of(const TfFeature& feature);

}  // namespace lockstep::data
