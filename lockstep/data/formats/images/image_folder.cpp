// Images in folders, one folder for each class.
#include <ATen/ATen.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cluster/named_text.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/data/files.h"
#include "lockstep/data/formats/images/image_decoder.h"
#include "lockstep/data/formats/images/image_to_tensor.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/formats/records/side_files.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestFile = int64_t{1} << 30;

class ImageSource final : public Source {
 public:
  ImageSource(std::string folder, std::vector<std::string> files, std::vector<uint64_t> sizes,
              std::vector<int64_t> classes, uint64_t order, const ImageOptions& options)
      : folder_(std::move(folder)),
        files_(std::move(files)),
        sizes_(std::move(sizes)),
        classes_(std::move(classes)),
        order_(order),
        options_(options),
        decode_(options, "image_folder") {}

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }

  Batch read(std::span<const int64_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    Batch batch{
        .input = at::empty({count, 3, options_.height, options_.width}, options_.normalize ? at::kFloat : at::kByte),
        .target = at::empty({count}, at::kLong)};
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::size_t>(ids[static_cast<std::size_t>(i)]);
      batch.target.data_ptr<int64_t>()[i] = classes_[id];
      read_image(files_[id], batch.input[i].data_ptr());
    }
    return batch;
  }

  std::string describe() const override { return fmt::format("{} images under '{}'", size(), folder_); }
  std::string name_of(int64_t id) const override { return fmt::format("'{}'", files_[static_cast<std::size_t>(id)]); }
  std::vector<SourceFile> files() const override {
    std::call_once(listed_, [&] { listed_files_ = list(); });
    return listed_files_;
  }
  uint64_t digest() const override {
    const uint64_t digest =
        internal::stage_digest(internal::digest_of(files()), "image_folder",
                               {static_cast<uint64_t>(options_.height), static_cast<uint64_t>(options_.width),
                                static_cast<uint64_t>(options_.fit), options_.normalize ? 1u : 0u});
    // Sorted classes are known by the files' names, so cursors of before there was .classes stay valid.
    return order_ == 0 ? digest : internal::stage_digest(digest, "classes", {order_});
  }

 private:
  /// Names and sizes of all, and the contents of some: opening a million files would take too long. A file's name
  /// decides whether its contents are read. So a new file changes nothing about the others, unless with it only half as
  /// many are read.
  std::vector<SourceFile> list() const {
    constexpr std::size_t kSampled = 256;
    const std::size_t every = std::bit_ceil((files_.size() + kSampled - 1) / kSampled);
    std::vector<SourceFile> files(files_.size());
    for (std::size_t i = 0; i < files_.size(); ++i) {
      std::string_view inner = std::string_view(files_[i]).substr(folder_.size());
      inner.remove_prefix(std::min(inner.find_first_not_of('/'), inner.size()));  // "data" and "data/" are one folder
      const uint64_t name = XXH3_64bits(inner.data(), inner.size());
      uint64_t digest = internal::mixed(name, sizes_[i]);
      if (name % every == 0) digest = internal::mixed(digest, internal::digest_of_file(files_[i]));
      files[i] = {files_[i], digest | 1};
    }
    return files;
  }

  void read_image(const std::string& path, void* to) const {
    const std::string bytes = internal::bytes_of_file(path, kLargestFile);
    try {
      decode_.write(bytes, to);
    } catch (const internal::ImageDamage& damage) {
      throw DataError("LS-DATA-FILE", fmt::format("'{}' cannot be used as an image: {}", path, damage.what()),
                      "get the file again, or take it out of the folder");
    }
  }

  const std::string folder_;
  const std::vector<std::string> files_;
  const std::vector<uint64_t> sizes_;  // in bytes
  const std::vector<int64_t> classes_;
  const uint64_t order_;  // of the classes; 0 where they are sorted
  const ImageOptions options_;
  const internal::ImageToTensor decode_;
  mutable std::once_flag listed_;
  mutable std::vector<SourceFile> listed_files_;  // written once
};

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

[[noreturn]] void unreadable(const std::string& folder, const std::string& why) {
  throw DataError("LS-DATA-FILE", fmt::format("'{}' {}", folder, why),
                  "give a folder that has one folder of images for each class");
}

[[noreturn]] void cannot_be_listed(const std::string& folder, const std::error_code& error) {
  if (internal::is_out_of_descriptors(error.value())) internal::refuse_to_open(folder, error.value());
  unreadable(folder, fmt::format("cannot be listed: {}", error.message()));
}

/// The folders in a folder, sorted; what lies beside data only where it is one of `classes`.
std::vector<std::string> folders_in(const std::string& folder, const std::vector<std::string>& classes) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    std::string name = it->path().filename().string();
    const bool is_named = std::find(classes.begin(), classes.end(), name) != classes.end();
    if (!is_named && internal::is_beside_data(name)) continue;
    if (it->is_directory(ignored)) names.push_back(std::move(name));
  }
  if (error) cannot_be_listed(folder, error);
  std::sort(names.begin(), names.end());
  return names;
}

/// Throws a UsageError for names that cannot be those of folders, or are there twice.
void check_names(const std::vector<std::string>& classes) {
  std::set<std::string> names;
  for (const std::string& name : classes) {
    const bool is_name = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
    if (is_name && names.insert(name).second) continue;
    throw UsageError("LS-OPTION",
                     fmt::format("image_folder was given the class {} in .classes{}", internal::in_quotes(name),
                                 is_name ? " twice" : ", which is no name of a folder"),
                     "give the name of each class's folder once");
  }
}

/// Throws a DataError where there are other folders than classes.
void compare_classes(const std::string& folder, const std::vector<std::string>& folders,
                     const std::vector<std::string>& classes) {
  const auto others = [](const std::vector<std::string>& some, const std::vector<std::string>& all) {
    std::string text;
    for (const std::string& one : some) {
      if (std::find(all.begin(), all.end(), one) == all.end())
        text += (text.empty() ? "" : ", ") + internal::in_quotes(one);
    }
    return text;
  };
  const std::string without_folder = others(classes, folders);
  const std::string not_named = others(folders, classes);
  if (without_folder.empty() && not_named.empty()) return;
  std::string what = fmt::format("'{}'", folder);
  if (!without_folder.empty()) what += fmt::format(" has no folder for what is in .classes: {}", without_folder);
  if (!not_named.empty())
    what +=
        fmt::format("{} has folders that are not in .classes: {}", without_folder.empty() ? "" : ", and", not_named);
  throw DataError("LS-DATA-FILE", what, "give all classes of all splits in .classes, or correct the folders");
}

uint64_t digest_of_order(const std::vector<std::string>& classes) {
  if (std::is_sorted(classes.begin(), classes.end())) return 0;
  uint64_t digest = classes.size();
  for (const std::string& name : classes) digest = internal::mixed(digest, XXH3_64bits(name.data(), name.size()));
  return digest | 1;
}

/// The images in a folder, at any depth, sorted; counts the other files.
std::vector<std::string> images_under(const fs::path& folder, int64_t& others) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (internal::is_beside_data(it->path().filename().string())) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(ignored)) continue;
    if (is_image_name(it->path())) {
      paths.push_back(it->path().string());
    } else {
      ++others;
    }
  }
  if (error) cannot_be_listed(folder.string(), error);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

ImageFolder image_folder(const std::string& folder, const ImageOptions& options) {
  ImageFolder result;
  check_names(options.classes);
  result.classes = folders_in(folder, options.classes);
  if (!options.classes.empty()) {
    compare_classes(folder, result.classes, options.classes);
    result.classes = options.classes;
  }
  if (result.classes.empty()) unreadable(folder, "has no folders in it");
  std::vector<int64_t> classes;
  for (std::size_t c = 0; c < result.classes.size(); ++c) {
    const fs::path path = fs::path(folder) / result.classes[c];
    const std::vector<std::string> files = images_under(path, result.passed_over);
    if (files.empty()) unreadable(path.string(), "has no file that ends with .png, .jpg or .jpeg");
    result.files.insert(result.files.end(), files.begin(), files.end());
    classes.insert(classes.end(), files.size(), static_cast<int64_t>(c));
  }
  std::vector<uint64_t> sizes;
  for (const std::string& file : result.files) {
    std::error_code ignored;  // what cannot be read is said when it is read
    sizes.push_back(fs::file_size(file, ignored));
  }
  result.dataset = Dataset(std::make_shared<ImageSource>(folder, result.files, std::move(sizes), std::move(classes),
                                                         digest_of_order(result.classes), options));
  return result;
}

}  // namespace lockstep::data
