#include "lockstep/checkpoint/exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/checkpoint/formats/state_dict.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

bool is_state_dict(const fs::path& file) {
  const std::string name = file.filename().string();  // ".pt" alone has no extension
  return name.ends_with(".pt") || name.ends_with(".pth");
}

/// Safetensors files have no complex dtypes. A word of the file's metadata says which tensors are complex.
std::string complex_key(const std::string& name) { return "complex:" + name; }

std::map<std::string, std::string> metadata_of(const internal::NamedTensors& tensors) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& [name, value] : tensors) {
    if (value.is_complex()) metadata[complex_key(name)] = internal::dtype_name(value.scalar_type());
  }
  return metadata;
}

/// The dtype of a tensor, where the file says that it is complex.
std::string complex_dtype(const internal::TensorFileHeader& header, const std::string& name) {
  const auto found = header.metadata.find(complex_key(name));
  const bool is_complex =
      found != header.metadata.end() && (found->second == "ComplexFloat" || found->second == "ComplexDouble");
  return is_complex ? found->second : std::string();
}

/// Whether a file begins as those of torch.save do that are no zip files: with its magic number, as a pickle.
bool is_of_old_torch(std::string_view begin) {
  return begin.find(
             "l\xfc\x9c"
             "F\xf9 j\xa8P\x19") != std::string_view::npos;
}

}  // namespace

std::map<std::string, at::Tensor> load_tensors(const fs::path& file, const Rename& rename) {
  const std::string what = fmt::format("'{}'", file.string());
  std::unique_ptr<internal::OpenFile> opened = internal::host_files().open(file);
  std::string first(std::min<uint64_t>(opened->size(), 32), '\0');
  opened->read(0, std::as_writable_bytes(std::span(first)));
  internal::NamedTensors tensors;
  if (is_of_old_torch(first)) {
    throw DataError("LS-CHECKPOINT-VERSION",
                    fmt::format("{} is in the format that torch.save had before PyTorch 1.6", what),
                    "load it in a newer PyTorch and save it again: torch.save(torch.load(file), file)");
  }
  std::map<std::string, std::string> mapped;  // by the name in the file
  const auto wants = [&](const std::string& name) {
    if (!rename) return true;
    return !mapped.try_emplace(name, rename(name)).first->second.empty();
  };
  if (first.starts_with("PK\3\4")) {
    tensors = internal::read_state_dict(*opened, what, wants);
  } else {
    const internal::TensorFile whole(std::move(opened), what);
    for (const internal::TensorPlace& place : whole.header().tensors) {
      if (!wants(place.name)) continue;
      tensors.emplace_back(place.name, whole.read(place, complex_dtype(whole.header(), place.name)));
    }
  }
  std::map<std::string, at::Tensor> named;
  for (auto& [name, value] : tensors) {
    const std::string& given = rename ? mapped.at(name) : name;
    if (!named.emplace(given, std::move(value)).second) {
      throw UsageError("LS-NAME", fmt::format("{} has two tensors that are named '{}'", what, internal::shown(given)),
                       "let the function that names them give each a name of its own");
    }
  }
  return named;
}

void save_tensors(const fs::path& file, const std::map<std::string, at::Tensor>& tensors) {
  const internal::NamedTensors named(tensors.begin(), tensors.end());
  // What cannot be stored is refused before anything is written.
  is_state_dict(file) ? internal::require_state_dict(named) : internal::require_storable(named);
  const fs::path target = internal::replace_file(file, [&](internal::NewFile& unfinished) {
    if (is_state_dict(file)) {
      internal::write_state_dict(unfinished, named);
    } else {
      internal::write_tensors(unfinished, named, metadata_of(named));
    }
  });
  internal::host_files().sync_folder(target.parent_path());
}

}  // namespace lockstep
