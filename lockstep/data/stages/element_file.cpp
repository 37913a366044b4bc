#include "lockstep/data/stages/element_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/sources/sample_bytes.h"
#include "lockstep/data/stages/cache_io.h"

namespace lockstep::internal {

namespace {

constexpr uint64_t kHeadMagic = 0x31434d5254534c53;  // "SLSTRMC1"
constexpr uint64_t kTailMagic = 0x31444e4543534c53;  // "SLSCEND1"
constexpr uint64_t kNoIds = std::numeric_limits<uint64_t>::max();

struct Head {
  uint64_t magic = kHeadMagic;
  uint64_t digest = 0;
};

struct ElementHead {
  uint64_t length = 0;
  uint64_t checksum = 0;
};

/// Behind the places of the elements.
struct Tail {
  uint64_t count = 0;
  uint64_t checksum = 0;  // of the places
  uint64_t magic = kTailMagic;
};

uint64_t checksum_of(const void* bytes, std::size_t count) { return XXH3_64bits(bytes, count); }

std::string part_of(const std::string& path) { return path + ".part"; }

bool can_be_kept(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized());
}

/// The ids, then the tensors.
std::string bytes_of_element(const Batch& element) {
  std::string bytes;
  if (element.ids.defined()) {
    const at::Tensor ids = element.ids.to(at::kLong).contiguous();
    ByteWriter(bytes).put(static_cast<uint64_t>(ids.numel()));
    bytes.append(static_cast<const char*>(ids.data_ptr()), ids.nbytes());
  } else {
    ByteWriter(bytes).put(kNoIds);
  }
  return bytes += bytes_of(element);
}

std::optional<Batch> element_of(std::string_view bytes) {
  ByteReader reader(bytes);
  uint64_t rows = 0;
  if (!reader.get(rows)) return std::nullopt;
  at::Tensor ids;
  if (rows != kNoIds) {
    std::string_view numbers;
    if (rows > bytes.size() || !reader.get_bytes(rows * sizeof(int64_t), numbers)) return std::nullopt;
    ids = at::empty({static_cast<int64_t>(rows)}, at::kLong);
    if (rows > 0) std::memcpy(ids.data_ptr(), numbers.data(), numbers.size());
  }
  std::optional<Batch> element = sample_of(reader.left());
  if (element) element->ids = std::move(ids);
  return element;
}

[[noreturn]] void throw_damaged(const std::string& path, const std::string& what) {
  throw DataError("LS-DATA-FILE", fmt::format("the cache '{}' is damaged: {}", path, what),
                  "remove it: it is written again in the next epoch that is read to its end");
}

/// Throws unless the file is empty, or begins as one that a cache has left unfinished.
void require_begun_by_a_cache(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) refuse_cache(path, 0);
  uint64_t magic = kHeadMagic;
  const auto known = std::min<std::size_t>(static_cast<std::size_t>(status.st_size), sizeof magic);
  if (read_at(file, &magic, known, 0) && magic == kHeadMagic) return;
  throw DataError("LS-DATA-FILE", fmt::format("'{}' is in the way of a cache, and is none that was begun", path),
                  "move it away, or give another path");
}

}  // namespace

std::shared_ptr<const ElementFile> ElementFile::open(const std::string& path, uint64_t digest) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT) return nullptr;
    refuse_cache(path, errno);
  }
  std::shared_ptr<ElementFile> opened(new ElementFile(path, std::move(file)));
  opened->read_places(digest);
  return opened;
}

void ElementFile::read_places(uint64_t digest) {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse_cache(path_, 0);
  Head head;
  const bool has_head = read_at(file_.get(), &head, sizeof head, 0) && head.magic == kHeadMagic;
  if (!has_head || head.digest != digest) {
    throw DataError("LS-DATA-CHANGED",
                    fmt::format("the cache '{}' holds {}", path_,
                                has_head ? "elements of another stream" : "something else than a stream's elements"),
                    "remove it, or give another path");
  }
  Tail tail;
  const int64_t places_end = status.st_size - static_cast<int64_t>(sizeof tail);
  const bool has_tail = places_end >= static_cast<int64_t>(sizeof head) &&
                        read_at(file_.get(), &tail, sizeof tail, places_end) && tail.magic == kTailMagic &&
                        tail.count <= static_cast<uint64_t>(places_end) / sizeof(int64_t);
  if (!has_tail) throw_damaged(path_, "its end is missing");
  places_.resize(tail.count);
  const auto bytes = static_cast<int64_t>(tail.count * sizeof(int64_t));
  end_ = places_end - bytes;
  const bool are_sound = read_at(file_.get(), places_.data(), static_cast<std::size_t>(bytes), end_) &&
                         checksum_of(places_.data(), static_cast<std::size_t>(bytes)) == tail.checksum;
  if (!are_sound) throw_damaged(path_, "the places of its elements fail their checksum");
}

Batch ElementFile::read(int64_t i) const {
  const int64_t place = places_.at(static_cast<std::size_t>(i));
  ElementHead head;
  const int64_t last_place = end_ - static_cast<int64_t>(sizeof head);
  const int64_t begin = place <= last_place ? place + static_cast<int64_t>(sizeof head) : end_;
  if (place >= 0 && place <= last_place && read_at(file_.get(), &head, sizeof head, place) &&
      head.length <= static_cast<uint64_t>(end_ - begin)) {
    std::string bytes(head.length, '\0');
    if (read_at(file_.get(), bytes.data(), bytes.size(), begin) &&
        checksum_of(bytes.data(), bytes.size()) == head.checksum) {
      if (std::optional<Batch> element = element_of(bytes)) return std::move(*element);
    }
  }
  throw_damaged(path_, fmt::format("element {} of {}, at byte {}, fails its checksum", i, size(), place));
}

std::unique_ptr<ElementFileWriter> ElementFileWriter::make(const std::string& path, uint64_t digest) {
  const std::string part = part_of(path);
  FileDescriptor file(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644));
  if (!file.is_open()) refuse_cache(part, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return nullptr;
    refuse_cache(part, errno);
  }
  std::unique_ptr<ElementFileWriter> writer(new ElementFileWriter(path, digest, std::move(file)));
  // The one that had the lock before may have finished or removed the file that was opened here.
  if (!writer->is_there()) return nullptr;
  require_begun_by_a_cache(writer->file_.get(), part);
  if (ftruncate(writer->file_.get(), 0) != 0) refuse_cache(part, errno);
  writer->is_begun_ = true;
  return writer;
}

ElementFileWriter::~ElementFileWriter() {
  if (is_begun_ && is_own() && is_there()) unlink(part_of(path_).c_str());  // while the lock is held
}

bool ElementFileWriter::is_there() const {
  struct stat opened {};
  struct stat there {};
  return fstat(file_.get(), &opened) == 0 && lstat(part_of(path_).c_str(), &there) == 0 &&
         opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
}

bool ElementFileWriter::append(const void* from, std::size_t count) {
  if (end_ == 0) {
    const Head head{.digest = digest_};
    if (!write_at(file_.get(), &head, sizeof head, 0)) return false;
    end_ = sizeof head;
  }
  if (!write_at(file_.get(), from, count, end_)) return false;
  end_ += static_cast<int64_t>(count);
  return true;
}

bool ElementFileWriter::give_up(const std::string& why) {
  log(LogLevel::kWarning,
      fmt::format("the cache '{}' cannot be written: {}; the stream is read each time", path_, why));
  if (is_there()) unlink(part_of(path_).c_str());
  file_.close();
  return false;
}

bool ElementFileWriter::add(const Batch& element) {
  if (!is_own()) return false;
  bool plain =
      element.input.defined() && can_be_kept(element.input) && can_be_kept(element.target) && can_be_kept(element.ids);
  for (const auto& [name, tensor] : element.more) plain = plain && can_be_kept(tensor);
  if (!plain)
    return give_up("an element has no input, or a tensor that is sparse, quantized or not in the host's memory");
  const std::string bytes = bytes_of_element(element);
  const ElementHead head{bytes.size(), checksum_of(bytes.data(), bytes.size())};
  places_.push_back(std::max(end_, static_cast<int64_t>(sizeof(Head))));
  if (append(&head, sizeof head) && append(bytes.data(), bytes.size())) return true;
  return give_up(std::generic_category().message(errno));
}

bool ElementFileWriter::finish() {
  if (!is_own()) return false;
  const std::size_t bytes = places_.size() * sizeof(int64_t);
  const Tail tail{.count = places_.size(), .checksum = checksum_of(places_.data(), bytes)};
  if (!is_there()) return give_up("somebody has removed it meanwhile");
  if (!append(places_.data(), bytes) || !append(&tail, sizeof tail) || fsync(file_.get()) != 0 ||
      std::rename(part_of(path_).c_str(), path_.c_str()) != 0)
    return give_up(std::generic_category().message(errno));
  file_.close();
  return true;
}

}  // namespace lockstep::internal
