// Writing a checkpoint into a folder, and removing one, so that a stop at any moment leaves a whole one or none.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/folder/write_checkpoint.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

namespace {

namespace fs = std::filesystem;

/// Whether a save made this file, which is not a manifest. Names that a program might choose too, as
/// "weights.safetensors", count only where the file says so itself. It does, because it gets such a name when it is
/// whole.
bool is_ours(Files& files, const fs::path& folder, std::string_view name) {
  if (is_unfinished(name)) return true;
  if (!is_name_of_tensors(name)) return false;
  try {
    const fs::path path = folder / name;
    return TensorFile(files.open(path), fmt::format("'{}'", path.string())).header().metadata.contains(kMadeBy);
  } catch (const DataError&) {
    return false;
  }
}

uint64_t free_generation(const std::vector<std::string>& names) {
  const std::set<std::string, std::less<>> taken(names.begin(), names.end());
  for (uint64_t generation = 0;; ++generation) {
    const bool is_free =
        !taken.contains(part_name(kManifestStem, generation)) &&
        std::none_of(std::begin(kStems), std::end(kStems), [&](const auto& stem) {
          return taken.contains(part_name(stem.first, generation)) || taken.contains(file_name(stem.first, generation));
        });
    if (is_free) return generation;
  }
}

/// Removes files of ours that are not `kept`, and those that a manifest named, `named`. As far as that is possible:
/// what stays does no harm.
void remove_leftovers(Files& files, const fs::path& folder, const std::set<std::string>& kept,
                      const std::set<std::string>& named) {
  try {
    for (const std::string& name : files.list(folder)) {
      if (kept.contains(name)) continue;
      if (named.contains(name) || is_ours(files, folder, name)) files.remove_file(folder / name);
    }
  } catch (const DataError&) {  // the next save tries again
  }
}

/// The files that the folder's manifest names; none where there is no manifest that can be read.
std::set<std::string> named_files(Files& files, const fs::path& folder) {
  std::set<std::string> names;
  try {
    for (const RecordedFile& one : read_manifest(files, folder).files) names.insert(one.name);
  } catch (const DataError&) {  // then only files that say whose they are can go
  }
  return names;
}

/// Two saves of this process into one folder, of which a manager's thread makes one, come one after the other: each
/// would remove what the other one has written.
class FolderTurn {
 public:
  explicit FolderTurn(const fs::path& folder) : folder_(folder.lexically_normal()) {
    std::unique_lock lock(mutex());
    free().wait(lock, [&] { return !taken().contains(folder_); });
    taken().insert(folder_);
  }
  ~FolderTurn() {
    const std::lock_guard lock(mutex());
    taken().erase(folder_);
    free().notify_all();
  }
  FolderTurn(const FolderTurn&) = delete;
  FolderTurn& operator=(const FolderTurn&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::condition_variable& free() {
    static std::condition_variable one;
    return one;
  }
  static std::set<fs::path>& taken() {  // guarded by mutex()
    static std::set<fs::path> all;
    return all;
  }
  const fs::path folder_;
};

/// Each piece is one writer's; a piece that is nobody's must never look written.
void require_all_checksums(const Manifest& manifest) {
  for (const RecordedTensor& one : manifest.tensors) {
    for (const std::string& checksum : one.checksums) {
      if (checksum.empty()) {
        throw InternalError("LS-INTERNAL", fmt::format("nobody has written a piece of '{}'", shown(one.key)),
                            "please report this");
      }
    }
  }
}

std::string encoded(const Manifest& manifest) {
  try {
    return encode_manifest(manifest);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("LS-NAME", fmt::format("a name or a value cannot be saved as JSON: {}", error.what()),
                     "use names and texts in UTF-8");
  }
}

}  // namespace

void save_image(Files& files, const fs::path& folder, const Image& image) {
  save_plan(files, folder, image.run, plan_of(image));
}

void save_plan(Files& files, const fs::path& folder, const RunRecord& run, const WritePlan& plan) {
  const Share all = share_of(plan, 0, 1);
  write_checkpoint(files, folder, run, plan, {all, bytes_of(plan, all)}, nullptr);
}

void write_checkpoint(Files& files, const fs::path& folder, const RunRecord& run, const WritePlan& plan,
                      const PlannedBytes& mine, const OtherWriters* others,
                      const std::function<void()>& require_wanted) {
  Manifest manifest{.run = run};
  encoded(manifest);  // with plan_of(), refuses before anything is written
  for (const PlannedTensor& one : plan.tensors) manifest.tensors.push_back(one.recorded);
  const FolderTurn turn(folder);
  files.make_folder(folder);
  const uint64_t generation = free_generation(files.list(folder));
  const uint64_t save = others ? others->save : generation;
  const std::set<std::string> earlier = named_files(files, folder);
  std::set<std::string> kept{kManifestName};
  std::vector<fs::path> made;  // so far, as long as no manifest can name them
  try {
    std::vector<std::unique_ptr<NewFile>> parts;
    for (const PlannedFile& one : plan.files) {
      const fs::path path = folder / part_name(one.stem, save);
      parts.push_back(files.create(path));
      made.push_back(path);
      parts.back()->write(0, std::as_bytes(std::span(one.head)));
    }
    const auto set_checksums = [&](const Share& share, const std::vector<std::string>& checksums) {
      for (std::size_t k = 0; k < share.size(); ++k) {
        const PlannedPiece& piece = plan.pieces[share.begin + k];
        manifest.tensors[piece.tensor].checksums[piece.number] = checksums[k];
      }
    };
    set_checksums(mine.share, write_pieces(files, plan, mine, parts));
    for (const auto& part : parts) part->sync();
    parts.clear();
    if (others) others->wait(set_checksums);
    require_all_checksums(manifest);
    for (std::size_t i = 0; i < plan.files.size(); ++i) {
      const PlannedFile& one = plan.files[i];
      const std::string name = file_name(one.stem, generation);
      files.rename(made[i], folder / name);
      made[i] = folder / name;
      manifest.files.push_back({name, one.bytes, content_checksum(one.head)});
      kept.insert(name);
    }
    const std::string text = encoded(manifest);
    const fs::path part = folder / part_name(kManifestStem, save);
    {
      const std::unique_ptr<NewFile> file = files.create(part);
      made.push_back(part);
      file->write(0, std::as_bytes(std::span(text)));
      file->sync();
    }
    files.sync_folder(folder);  // the names of the data files, before that of the manifest
    if (require_wanted) require_wanted();
    made.clear();
    files.rename(part, folder / kManifestName);
    files.sync_folder(folder);
  } catch (...) {
    for (const fs::path& one : made) {
      try {
        files.remove_file(one);
      } catch (const DataError&) {  // the next save tries again
      }
    }
    throw;
  }
  remove_leftovers(files, folder, kept, earlier);
}

void remove_checkpoint(Files& files, const fs::path& folder) {
  const std::set<std::string> named = named_files(files, folder);
  if (files.has(folder / kManifestName)) {
    files.remove_file(folder / kManifestName);
    files.sync_folder(folder);
  }
  remove_leftovers(files, folder, {}, named);
  if (files.list(folder).empty()) files.remove_folder(folder);
}

bool has_only_remains(Files& files, const fs::path& folder) {
  const std::vector<std::string> names = files.list(folder);
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return is_ours(files, folder, name); });
}

}  // namespace lockstep::internal::checkpoint
