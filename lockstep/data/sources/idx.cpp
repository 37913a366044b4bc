// MNIST's images and labels, from a folder of IDX files.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/images/idx_file.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/sources/sources.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

/// The file of `stem` and `kind` in a folder, under each of the names that are in use; nothing where there is none.
std::optional<fs::path> file_of(const fs::path& folder, const std::string& stem, const std::string& kind) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      fs::path path = folder / fmt::format("{}{}{}-ubyte{}", stem, separator, kind, ending);
      std::error_code ignored;
      if (fs::is_regular_file(path, ignored)) return path;
    }
  }
  return std::nullopt;
}

internal::IdxFile read(const fs::path& path, internal::IdxKind kind) {
  return internal::read_idx_file(internal::Input(path.string()), kind);
}

Dataset load(const fs::path& images_path, const fs::path& labels_path) {
  const internal::IdxFile images = read(images_path, internal::IdxKind::kImages);
  const internal::IdxFile labels = read(labels_path, internal::IdxKind::kLabels);
  if (images.sizes[0] != labels.sizes[0]) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' has {} images and '{}' has {} labels", images_path.string(), images.sizes[0],
                                labels_path.string(), labels.sizes[0]),
                    "take both files from one data set");
  }
  if (images.sizes[0] == 0 || images.sizes[1] != 28 || images.sizes[2] != 28) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' holds {} images of {} x {}", images_path.string(), images.sizes[0],
                                images.sizes[1], images.sizes[2]),
                    "give images of 28 x 28");
  }
  const auto bad = std::find_if(labels.bytes.begin(), labels.bytes.end(),
                                [](char label) { return static_cast<unsigned char>(label) > 9; });
  if (bad != labels.bytes.end()) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' has the label {} at sample {}", labels_path.string(),
                                static_cast<unsigned char>(*bad), bad - labels.bytes.begin()),
                    "give labels from 0 to 9");
  }
  at::Tensor pixels = at::empty({images.sizes[0], 1, 28, 28}, at::kByte);
  std::memcpy(pixels.data_ptr(), images.bytes.data(), images.bytes.size());
  at::Tensor target = at::empty({labels.sizes[0]}, at::kByte);
  std::memcpy(target.data_ptr(), labels.bytes.data(), labels.bytes.size());
  // MNIST's mean and standard deviation, as they are usually given.
  return internal::tensors_of_files(pixels.to(at::kFloat).div_(255).sub_(0.1307).div_(0.3081), target.to(at::kLong),
                                    {internal::file_in_memory(images_path.string(), images.bytes),
                                     internal::file_in_memory(labels_path.string(), labels.bytes)});
}

}  // namespace

Split idx(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' is not a folder", folder),
                    "give the folder that holds MNIST's IDX files");
  }
  const auto pair = [&](const char* stem) -> std::optional<Dataset> {
    const auto images = file_of(folder, fmt::format("{}-images", stem), "idx3");
    const auto labels = file_of(folder, fmt::format("{}-labels", stem), "idx1");
    if (images && labels) return load(*images, *labels);
    if (images || labels) {
      throw DataError("LS-DATA-FILE",
                      fmt::format("'{}' holds {}'s {} without its {}", folder, stem, images ? "images" : "labels",
                                  images ? "labels" : "images"),
                      "add the missing file, or take the other away");
    }
    return std::nullopt;
  };
  const std::optional<Dataset> evaluate = pair("t10k");
  if (!evaluate) {
    throw DataError(
        "LS-DATA-FILE",
        fmt::format("'{}' holds no pair t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, with or without .gz",
                    folder),
        "give the folder that holds MNIST's IDX files");
  }
  if (const std::optional<Dataset> train = pair("train")) return {*train, *evaluate};
  const int64_t cut = evaluate->size() * 8 / 10;
  return {slice(*evaluate, 0, cut), slice(*evaluate, cut, evaluate->size())};
}

}  // namespace lockstep::data
