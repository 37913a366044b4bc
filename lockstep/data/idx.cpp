// MNIST's IDX format (http://yann.lecun.com/exdb/mnist): a magic number that names dtype and dimensions, their sizes in
// big-endian, then the elements.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/files_digest.h"
#include "lockstep/data/sources.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kImages = 0x00000803;  // unsigned bytes, three dimensions
constexpr uint32_t kLabels = 0x00000801;  // unsigned bytes, one dimension
constexpr std::size_t kPiece = 1 << 20;   // memory grows by what was read, a piece at a time

struct Idx {
  std::vector<int64_t> sizes;
  std::vector<unsigned char> bytes;
};

/// Reads a file that may be gzip-compressed; zlib finds out.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path.string()), file_(gzopen(path_.c_str(), "rb"), &gzclose) {
    if (!file_)
      throw DataError("LS-DATA-FILE", fmt::format("'{}' cannot be opened", path_),
                      "check that it exists and may be read");
  }

  /// Reads up to `count` bytes; fewer only at the end.
  std::size_t read(void* to, std::size_t count) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(count));
    if (got < 0) {
      int code = 0;
      const char* const text = gzerror(file_.get(), &code);
      throw DataError("LS-DATA-FILE",
                      fmt::format("'{}' is damaged at byte {} of its contents: {}", path_, position_, text),
                      "get the file again");
    }
    position_ += static_cast<int64_t>(got);
    return static_cast<std::size_t>(got);
  }
  const std::string& path() const { return path_; }
  int64_t position() const { return position_; }

 private:
  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  int64_t position_ = 0;
};

uint32_t read_word(Reader& reader) {
  unsigned char bytes[4];
  if (reader.read(bytes, sizeof bytes) != sizeof bytes) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' ends at byte {}, within its header", reader.path(), reader.position()),
                    "get the file again");
  }
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | bytes[3];
}

Idx read_idx(const fs::path& path, uint32_t magic) {
  Reader reader(path);
  const uint32_t found = read_word(reader);
  if (found != magic) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' is not an IDX file of {}: it begins with {:#010x} instead of {:#010x}",
                                reader.path(), magic == kImages ? "images" : "labels", found, magic),
                    "give a folder with MNIST's IDX files");
  }
  Idx idx;
  int64_t promised = 1;
  for (uint32_t d = 0; d < (magic & 0xff); ++d) {
    idx.sizes.push_back(read_word(reader));
    if (__builtin_mul_overflow(promised, idx.sizes.back(), &promised)) promised = INT64_MAX;
  }
  while (static_cast<int64_t>(idx.bytes.size()) < promised) {
    const std::size_t before = idx.bytes.size();
    const std::size_t wanted = std::min(kPiece, static_cast<std::size_t>(promised) - before);
    idx.bytes.resize(before + wanted);
    const std::size_t got = reader.read(idx.bytes.data() + before, wanted);
    idx.bytes.resize(before + got);
    if (got == 0) {
      throw DataError(
          "LS-DATA-FILE",
          fmt::format("'{}' holds {} bytes of data where its header promises {}", reader.path(), before, promised),
          "get the file again: it is cut off");
    }
  }
  char more = 0;
  if (reader.read(&more, 1) != 0) {
    throw DataError(
        "LS-DATA-FILE",
        fmt::format("'{}' holds more than the {} bytes of data that its header promises", reader.path(), promised),
        "get the file again");
  }
  return idx;
}

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

Dataset load(const fs::path& images_path, const fs::path& labels_path) {
  const Idx images = read_idx(images_path, kImages);
  const Idx labels = read_idx(labels_path, kLabels);
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
  const auto bad =
      std::find_if(labels.bytes.begin(), labels.bytes.end(), [](unsigned char label) { return label > 9; });
  if (bad != labels.bytes.end()) {
    throw DataError(
        "LS-DATA-FILE",
        fmt::format("'{}' has the label {} at sample {}", labels_path.string(), *bad, bad - labels.bytes.begin()),
        "give labels from 0 to 9");
  }
  at::Tensor pixels = at::empty({images.sizes[0], 1, 28, 28}, at::kByte);
  std::memcpy(pixels.data_ptr(), images.bytes.data(), images.bytes.size());
  at::Tensor target = at::empty({labels.sizes[0]}, at::kByte);
  std::memcpy(target.data_ptr(), labels.bytes.data(), labels.bytes.size());
  // MNIST's mean and standard deviation, as they are usually given.
  const auto file = [](const fs::path& path, const Idx& idx) {
    return internal::file_in_memory(path.string(), {reinterpret_cast<const char*>(idx.bytes.data()), idx.bytes.size()});
  };
  return internal::tensors_of_files(pixels.to(at::kFloat).div_(255).sub_(0.1307).div_(0.3081), target.to(at::kLong),
                                    {file(images_path, images), file(labels_path, labels)});
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
