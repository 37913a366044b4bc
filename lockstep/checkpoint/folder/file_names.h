// The names of the files of a checkpoint's folder. These are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::internal::inline checkpoint {

inline constexpr const char* kFolderLock =
    ".lock";                                        // of a folder of checkpoints: is locked by the job that saves there
inline constexpr const char* kMadeBy = "lockstep";  // in a file's metadata: only files of checkpoints have it

/// The files with tensors: the first part of their names, and the kind of tensors that they have.
inline constexpr std::pair<std::string_view, std::string_view> kStems[] = {
    {"weights", "mirrored"}, {"optimizer", "slot"}, {"replicas", "on-read"}, {"tables", "rows"}};
inline constexpr std::string_view kTablesStem = "tables";
inline constexpr std::string_view kManifestStem = "manifest";

/// "weights.safetensors", "weights.2.safetensors". A folder's second save must not touch the files of its first.
std::string file_name(std::string_view stem, uint64_t generation);

/// "weights.0.part", "manifest.2.part": what a file is called until it is on the disk. `save` tells the saves apart.
std::string part_name(std::string_view stem, uint64_t save);

/// "record3.17.part": files by which worker 3 tells the other workers of save 17 how far it is. They lie in the folder
/// around the checkpoint's.
enum class WriterFile : uint8_t {
  kProbe,      // by which a worker finds out whether it sees the folder
  kMark,       // is locked while the worker writes
  kNewMark,    // the same until it is locked
  kRecord,     // has the checksums of the worker's pieces
  kNewRecord,  // the same until it is whole
};
std::string writer_file_name(WriterFile file, int64_t worker, uint64_t save);
bool is_writer_file(std::string_view name);

/// ".reading-step-0000000012", in the folder around a checkpoint's: is locked while somebody reads it.
std::string reading_mark_name(std::string_view checkpoint);

/// Whether only a save makes files of this name, in a checkpoint's folder, until it has ended.
bool is_unfinished(std::string_view name);
/// Whether a save may have made it; a program may choose such a name too.
bool is_name_of_tensors(std::string_view name);

}  // namespace lockstep::internal::checkpoint
