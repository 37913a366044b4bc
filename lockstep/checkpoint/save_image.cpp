// Writing a checkpoint into a folder, and removing one, so that a stop at any moment leaves a whole one or none.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/image.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

namespace fs = std::filesystem;

/// The files of a checkpoint: the first part of their names, and whose tensors they have.
constexpr std::pair<std::string_view, std::string_view> kStems[] = {
    {"weights", "mirrored"}, {"optimizer", "slot"}, {"replicas", "on-read"}};

/// "weights.safetensors", "weights.2.safetensors". A folder's second save must not touch the files of its first.
std::string file_name(std::string_view stem, int64_t generation) {
  return generation == 0 ? fmt::format("{}.safetensors", stem) : fmt::format("{}.{}.safetensors", stem, generation);
}

std::string part_name(int64_t generation) { return fmt::format("manifest.{}.part", generation); }

/// Whether a file of this name was written by save_image, other than a manifest.
bool is_ours(std::string_view name) {
  const auto cut = [&](std::string_view begin, std::string_view end) {
    if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size()) return false;
    const std::string_view middle = name.substr(begin.size(), name.size() - begin.size() - end.size());
    return middle.empty() ||
           (middle.size() > 1 && middle.front() == '.' &&
            std::all_of(middle.begin() + 1, middle.end(), [](unsigned char c) { return std::isdigit(c) != 0; }));
  };
  if (cut("manifest", ".part")) return true;
  return std::any_of(std::begin(kStems), std::end(kStems),
                     [&](const auto& stem) { return cut(stem.first, ".safetensors"); });
}

int64_t free_generation(const std::vector<std::string>& names) {
  const std::set<std::string, std::less<>> taken(names.begin(), names.end());
  for (int64_t generation = 0;; ++generation) {
    const bool is_free = !taken.contains(part_name(generation)) &&
                         std::none_of(std::begin(kStems), std::end(kStems), [&](const auto& stem) {
                           return taken.contains(file_name(stem.first, generation));
                         });
    if (is_free) return generation;
  }
}

/// Removes files of ours that are not `kept`, as far as that is possible: what stays does no harm.
void remove_leftovers(Files& files, const fs::path& folder, const std::set<std::string>& kept) {
  try {
    for (const std::string& name : files.list(folder)) {
      if (is_ours(name) && !kept.contains(name)) files.remove_file(folder / name);
    }
  } catch (const DataError&) {  // the next save tries again
  }
}

/// The tensor's name in its file.
std::string key_of(const ImageTensor& one) {
  return one.replica < 0 ? one.name : fmt::format("{}@{}", one.name, one.replica);
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
  files.make_folder(folder);
  const int64_t generation = free_generation(files.list(folder));
  Manifest manifest{.run = image.run};
  encoded(manifest);  // refuses before anything is written
  std::set<std::string> kept{kManifestName};
  bool may_be_named = false;  // whether a manifest may name the new files
  try {
    for (const auto& [stem, kind] : kStems) {
      NamedTensors tensors;
      std::vector<RecordedTensor> recorded;
      for (const ImageTensor& one : image.tensors) {
        if (one.kind != kind) continue;
        tensors.emplace_back(key_of(one), one.value);
        recorded.push_back({.kind = one.kind,
                            .name = one.name,
                            .replica = one.replica,
                            .file = manifest.files.size(),
                            .key = key_of(one),
                            .dtype = dtype_name(one.value.scalar_type())});
      }
      if (tensors.empty()) continue;
      const std::string name = file_name(stem, generation);
      const WrittenFile written =
          write_tensors(*files.create(folder / name), tensors, {{"format", "pt"}, {"lockstep", image.run.library}});
      for (std::size_t i = 0; i < recorded.size(); ++i) recorded[i].checksum = written.checksums[i];
      manifest.tensors.insert(manifest.tensors.end(), recorded.begin(), recorded.end());
      manifest.files.push_back({name, written.bytes, written.header_checksum});
      kept.insert(name);
    }
    const std::string text = encoded(manifest);
    const fs::path part = folder / part_name(generation);
    const std::unique_ptr<NewFile> file = files.create(part);
    file->write(std::as_bytes(std::span(text)));
    file->sync();
    files.sync_folder(folder);  // the names of the data files, before that of the manifest
    may_be_named = true;
    files.rename(part, folder / kManifestName);
    files.sync_folder(folder);
  } catch (const Error&) {
    if (!may_be_named) {
      try {
        std::set<std::string> before{kManifestName};
        if (files.has(folder / kManifestName)) {
          for (const RecordedFile& one : read_manifest(files, folder).files) before.insert(one.name);
        }
        remove_leftovers(files, folder, before);
      } catch (const DataError&) {  // a manifest that cannot be read: nothing is removed
      }
    }
    throw;
  }
  remove_leftovers(files, folder, kept);
}

void remove_checkpoint(Files& files, const fs::path& folder) {
  if (files.has(folder / kManifestName)) {
    files.remove_file(folder / kManifestName);
    files.sync_folder(folder);
  }
  remove_leftovers(files, folder, {});
  if (files.list(folder).empty()) files.remove_folder(folder);
}

}  // namespace lockstep::internal
