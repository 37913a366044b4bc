// CIFAR's binary version: records of one or two label bytes and 3 x 32 x 32 bytes of red, green and blue.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "lockstep/data/formats/images/byte_images.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPixels = 32 * 32;
constexpr int64_t kImage = 3 * kPixels;
constexpr int64_t kLargestFile = int64_t{1} << 32;

/// One of the two data sets: how its records are laid out.
struct Kind {
  const char* name;
  const char* subfolder;
  int64_t labels;  // bytes before the image
  int64_t label;   // which of them is read
  int64_t classes;
  std::array<float, 3> mean;
  std::array<float, 3> deviation;
};

class CifarSource final : public Source {
 public:
  CifarSource(const Kind& kind, std::string records, std::vector<SourceFile> files, bool normalize)
      : records_(std::move(records)),
        files_(std::move(files)),
        record_(kind.labels + kImage),
        labels_(kind.labels),
        label_(kind.label),
        normalize_(normalize),
        table_(kind.mean, kind.deviation),
        name_(kind.name) {}

  int64_t size() const override { return static_cast<int64_t>(records_.size()) / record_; }

  Batch read(std::span<const int64_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    Batch batch{.input = at::empty({count, 3, 32, 32}, normalize_ ? at::kFloat : at::kByte),
                .target = at::empty({count}, at::kLong)};
    auto* target = batch.target.data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      const auto* const record =
          reinterpret_cast<const unsigned char*>(records_.data()) + ids[static_cast<std::size_t>(i)] * record_;
      target[i] = record[label_];
      if (normalize_) {
        table_.apply(record + labels_, kPixels, batch.input.data_ptr<float>() + i * kImage);
      } else {
        std::memcpy(batch.input.data_ptr<uint8_t>() + i * kImage, record + labels_, kImage);
      }
    }
    return batch;
  }

  std::string describe() const override { return fmt::format("{} images of {}", size(), name_); }
  std::vector<SourceFile> files() const override { return files_; }
  uint64_t digest() const override {
    return internal::stage_digest(internal::digest_of(files_), name_,
                                  {static_cast<uint64_t>(label_), normalize_ ? 1u : 0u});
  }

 private:
  const std::string records_;
  const std::vector<SourceFile> files_;
  const int64_t record_;
  const int64_t labels_;
  const int64_t label_;
  const bool normalize_;
  const internal::PixelTable table_;
  const char* const name_;
};

/// Appends the records of a file.
SourceFile append_file(const Kind& kind, const fs::path& path, std::string& records) {
  const int64_t record = kind.labels + kImage;
  const std::string bytes = internal::bytes_of_file(path.string(), kLargestFile);
  if (bytes.empty() || static_cast<int64_t>(bytes.size()) % record != 0) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' has {} bytes, which is no number of records of {} bytes", path.string(),
                                bytes.size(), record),
                    fmt::format("get the binary version of {} again", kind.name));
  }
  for (std::size_t at = static_cast<std::size_t>(kind.label); at < bytes.size();
       at += static_cast<std::size_t>(record)) {
    const auto label = static_cast<unsigned char>(bytes[at]);
    if (label < kind.classes) continue;
    throw DataError("LS-DATA-FILE", fmt::format("'{}' has the label {} at byte {}", path.string(), label, at),
                    fmt::format("give files of {} with labels from 0 to {}", kind.name, kind.classes - 1));
  }
  records += bytes;
  return internal::file_in_memory(path.string(), bytes);
}

Dataset load(const Kind& kind, const fs::path& folder, const std::vector<const char*>& files, bool normalize) {
  std::string records;
  std::vector<SourceFile> read;
  for (const char* file : files) read.push_back(append_file(kind, folder / file, records));
  return Dataset(std::make_shared<CifarSource>(kind, std::move(records), std::move(read), normalize));
}

Split load_both(const Kind& kind, const std::string& folder, const std::vector<const char*>& train, const char* test,
                bool normalize) {
  std::error_code ignored;
  fs::path here(folder);
  if (fs::is_directory(here / kind.subfolder, ignored)) here /= kind.subfolder;
  if (!fs::is_directory(here, ignored)) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' is not a folder", folder),
                    fmt::format("give the folder with {}'s binary version", kind.name));
  }
  return {load(kind, here, train, normalize), load(kind, here, {test}, normalize)};
}

}  // namespace

Split cifar10(const std::string& folder, const CifarOptions& options) {
  if (options.coarse) {
    throw UsageError("LS-OPTION", "cifar10 was given .coarse, and CIFAR-10 has one set of classes", "leave it out");
  }
  const Kind kind{
      "CIFAR-10", "cifar-10-batches-bin", 1, 0, 10, {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  return load_both(kind, folder,
                   {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
                   "test_batch.bin", options.normalize);
}

Split cifar100(const std::string& folder, const CifarOptions& options) {
  const Kind kind{"CIFAR-100",
                  "cifar-100-binary",
                  2,
                  options.coarse ? 0 : 1,
                  options.coarse ? 20 : 100,
                  {0.5071f, 0.4865f, 0.4409f},
                  {0.2673f, 0.2564f, 0.2762f}};
  return load_both(kind, folder, {"train.bin"}, "test.bin", options.normalize);
}

}  // namespace lockstep::data
