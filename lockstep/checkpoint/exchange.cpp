#include "lockstep/checkpoint/exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/strict_json.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace fs = std::filesystem;

std::map<std::string, at::Tensor> load_tensors(const fs::path& file, const Rename& rename) {
  const std::string what = fmt::format("'{}'", file.string());
  std::unique_ptr<internal::OpenFile> opened = internal::host_files().open(file);
  std::array<char, 4> first{};
  if (opened->size() >= first.size()) opened->read(0, std::as_writable_bytes(std::span(first)));
  internal::NamedTensors tensors;
  if (std::string_view(first.data(), first.size()) == "PK\3\4") {
    tensors = internal::read_state_dict(*opened, what);
  } else {
    const internal::TensorFile whole(std::move(opened), what);
    for (const internal::TensorPlace& place : whole.header().tensors) {
      tensors.emplace_back(place.name, whole.read(place, ""));
    }
  }
  std::map<std::string, at::Tensor> named;
  for (auto& [name, value] : tensors) {
    const std::string mapped = rename ? rename(name) : name;
    if (mapped.empty()) continue;
    if (!named.emplace(mapped, std::move(value)).second) {
      throw UsageError("LS-NAME", fmt::format("{} has two tensors that are named '{}'", what, internal::shown(mapped)),
                       "let the function that names them give each a name of its own");
    }
  }
  return named;
}

void save_tensors(const fs::path& file, const std::map<std::string, at::Tensor>& tensors) {
  internal::Files& files = internal::host_files();
  const internal::NamedTensors named(tensors.begin(), tensors.end());
  internal::require_storable(named);  // before anything is written
  const fs::path part = file.string() + ".part";
  if (files.has(part)) files.remove_file(part);
  try {
    internal::write_tensors(*files.create(part), named, {{"format", "pt"}});
    files.rename(part, file);
  } catch (...) {
    try {
      if (files.has(part)) files.remove_file(part);
    } catch (const DataError&) {  // the first error is the one to tell
    }
    throw;
  }
  files.sync_folder(file.parent_path());
}

}  // namespace lockstep
