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

constexpr const char* kMadeBy = "lockstep";  // in a file's metadata: only files of checkpoints have it

/// The files of a checkpoint: the first part of their names, and whose tensors they have.
constexpr std::pair<std::string_view, std::string_view> kStems[] = {
    {"weights", "mirrored"}, {"optimizer", "slot"}, {"replicas", "on-read"}};

/// "weights.safetensors", "weights.2.safetensors". A folder's second save must not touch the files of its first.
std::string file_name(std::string_view stem, int64_t generation) {
  return generation == 0 ? fmt::format("{}.safetensors", stem) : fmt::format("{}.{}.safetensors", stem, generation);
}

/// "weights.0.part", "manifest.2.part": what a file is called until it is on the disk.
std::string part_name(std::string_view stem, int64_t generation) { return fmt::format("{}.{}.part", stem, generation); }

constexpr std::string_view kManifestStem = "manifest";

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Whether save_image() made this file, which is not a manifest. Names that a program might choose too, as
/// "weights.safetensors", count only where the file says so itself. It does, because it gets such a name when it is
/// whole.
bool is_ours(Files& files, const fs::path& folder, std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view stem = name.substr(0, dot);
  const std::string_view rest = name.substr(dot);
  const bool is_of_tensors =
      std::any_of(std::begin(kStems), std::end(kStems), [&](const auto& one) { return one.first == stem; });
  const auto ends_in = [&](std::string_view end) {
    return rest.size() > end.size() && rest.ends_with(end) && is_number(rest.substr(1, rest.size() - end.size() - 1));
  };
  if (ends_in(".part")) return is_of_tensors || stem == kManifestStem;
  if (!is_of_tensors || !(rest == ".safetensors" || ends_in(".safetensors"))) return false;
  try {
    const fs::path path = folder / name;
    return TensorFile(files.open(path), fmt::format("'{}'", path.string())).header().metadata.contains(kMadeBy);
  } catch (const DataError&) {
    return false;
  }
}

int64_t free_generation(const std::vector<std::string>& names) {
  const std::set<std::string, std::less<>> taken(names.begin(), names.end());
  for (int64_t generation = 0;; ++generation) {
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

/// The tensor's name in its file.
std::string key_of(const ImageTensor& one) {
  return one.replica < 0 ? one.name : fmt::format("{}@{}", one.name, one.replica);
}

/// What is written into one file.
struct FileContent {
  std::string_view stem;
  NamedTensors tensors = {};
  std::vector<RecordedTensor> recorded = {};
};

/// A UsageError for a value or a name that cannot be saved.
std::vector<FileContent> contents_of(const Image& image) {
  std::vector<FileContent> contents;
  for (const auto& [stem, kind] : kStems) {
    FileContent content{.stem = stem};
    for (const ImageTensor& one : image.tensors) {
      if (one.kind != kind) continue;
      content.tensors.emplace_back(key_of(one), one.value);
      content.recorded.push_back({.kind = one.kind,
                                  .name = one.name,
                                  .replica = one.replica,
                                  .file = contents.size(),
                                  .key = key_of(one),
                                  .dtype = dtype_name(one.value.scalar_type())});
    }
    if (content.tensors.empty()) continue;
    require_storable(content.tensors);
    contents.push_back(std::move(content));
  }
  return contents;
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
  Manifest manifest{.run = image.run};
  encoded(manifest);  // with contents_of(), refuses before anything is written
  std::vector<FileContent> contents = contents_of(image);
  files.make_folder(folder);
  const int64_t generation = free_generation(files.list(folder));
  const std::set<std::string> earlier = named_files(files, folder);
  std::set<std::string> kept{kManifestName};
  std::vector<fs::path> made;  // so far, as long as no manifest can name them
  const auto make = [&](const std::string& name, const auto& write) {
    const std::unique_ptr<NewFile> file = files.create(folder / name);
    made.push_back(folder / name);
    write(*file);
  };
  try {
    for (FileContent& one : contents) {
      const std::string name = file_name(one.stem, generation);
      const std::string part = part_name(one.stem, generation);
      WrittenFile written;
      make(part, [&](NewFile& file) {
        written = write_tensors(file, one.tensors, {{"format", "pt"}, {kMadeBy, image.run.library}});
      });
      files.rename(folder / part, folder / name);
      made.back() = folder / name;
      for (std::size_t i = 0; i < one.recorded.size(); ++i) one.recorded[i].checksum = written.checksums[i];
      manifest.tensors.insert(manifest.tensors.end(), one.recorded.begin(), one.recorded.end());
      manifest.files.push_back({name, written.bytes, written.header_checksum});
      kept.insert(name);
    }
    const std::string text = encoded(manifest);
    const std::string part = part_name(kManifestStem, generation);
    make(part, [&](NewFile& file) {
      file.write(std::as_bytes(std::span(text)));
      file.sync();
    });
    files.sync_folder(folder);  // the names of the data files, before that of the manifest
    made.clear();
    files.rename(folder / part, folder / kManifestName);
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

}  // namespace lockstep::internal
