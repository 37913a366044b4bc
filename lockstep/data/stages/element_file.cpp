#include "lockstep/data/stages/element_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/stages/element_record.h"

namespace lockstep::internal::inline data {

namespace {

constexpr uint64_t kMagic = 0x3245484341434c53;                     // "SLCACHE2"
constexpr uint64_t kEndMagic = 0x32444e4543434c53;                  // "SLCCEND2"
constexpr uint64_t kOlderDatasetMagic = 0x3145484341434c53;         // "SLCACHE1"
constexpr uint64_t kOlderStreamMagic = 0x31434d5254534c53;          // "SLSTRMC1"
constexpr uint64_t kPlaces = std::numeric_limits<uint64_t>::max();  // the number of the record that has all places

struct Head {
  uint64_t magic = kMagic;
  uint64_t digest = 0;
  int64_t size = 0;  // as in the CacheKey
};

/// The last bytes of a file that has all elements.
struct End {
  int64_t place = 0;  // of the record with all places
  uint64_t magic = kEndMagic;
};

constexpr auto kHeadSize = static_cast<int64_t>(sizeof(Head));

/// The DataError of a file that cannot be opened or made, for an `error` of errno; 0: it is not a plain file.
[[noreturn]] void refuse_cache(const std::string& path, int error) {
  if (is_out_of_descriptors(error) || error == ENOMEM) refuse_to_open(path, error);
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  std::string why = std::generic_category().message(error);
  const char* cure = "see the system's reason, or call cache() without a path";
  if (error == 0 || error == EISDIR) {
    why = "it is not a plain file";
    cure = "give the path of a file, or of none yet";
  } else if (!fs::is_directory(folder, ignored)) {
    why = fmt::format("there is no folder '{}'", folder);
    cure = "make that folder, or give another path";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    why = fmt::format("'{}' may not be read or written ({})", fs::exists(path, ignored) ? path : folder, why);
    cure = "give a path that this user may read and write, or call cache() without one";
  }
  throw DataError("LS-DATA-FILE", fmt::format("the cache '{}' cannot be used: {}", path, why), cure);
}

[[noreturn]] void throw_damaged(const std::string& path, const std::string& what) {
  throw DataError("LS-DATA-FILE", fmt::format("the cache '{}' is damaged: {}", path, what),
                  "remove it: it is written again");
}

std::string error_text() { return std::generic_category().message(errno); }

std::string part_of(const std::string& path) { return path + ".part"; }

/// The length of a plain file.
int64_t length_of(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) refuse_cache(path, 0);
  return status.st_size;
}

/// False where another reader has the lock.
bool is_locked(int file, const std::string& path) {
  const bool is_done = flock(file, LOCK_EX | LOCK_NB) == 0;
  if (!is_done && errno != EWOULDBLOCK) refuse_cache(path, errno);
  return is_done;
}

enum class Beginning {
  kNone,   // the file is empty, or ends within the head that it should have
  kOlder,  // it is a cache of this data in a format that is not read any more
  kHead,
};

/// Throws a DataError for a file of anything else.
Beginning beginning_of(int file, int64_t length, const std::string& path, const CacheKey& key) {
  const bool is_stream = key.size == CacheKey::kStream;
  const Head wanted{.digest = key.digest, .size = key.size};
  Head head{.magic = 0};
  const auto known = static_cast<std::size_t>(std::min(length, kHeadSize));
  const bool is_read = read_at(file, &head, known, 0);
  if (is_read && std::memcmp(&head, &wanted, known) == 0)
    return known < sizeof head ? Beginning::kNone : Beginning::kHead;
  const uint64_t older = is_stream ? kOlderStreamMagic : kOlderDatasetMagic;
  if (known == sizeof head && head.magic == older && head.digest == key.digest) return Beginning::kOlder;
  const bool is_of_a_stream =
      head.magic == kOlderStreamMagic || (head.magic == kMagic && head.size == CacheKey::kStream);
  std::string what = is_stream ? "elements of another stream" : "samples of other data";
  if (known < sizeof head ||
      (head.magic != kMagic && head.magic != kOlderDatasetMagic && head.magic != kOlderStreamMagic)) {
    what = "something else than elements";
  } else if (is_of_a_stream != is_stream) {
    what = is_stream ? "samples of a data set" : "elements of a stream";
  } else if (head.magic == kMagic && head.size != key.size) {
    what = fmt::format("{} samples of a data set of another size", head.size);
  }
  throw DataError("LS-DATA-CHANGED", fmt::format("the cache '{}' holds {}", path, what),
                  "remove it, or give another path");
}

}  // namespace

std::shared_ptr<const ElementFile> ElementFile::open(const std::string& path, const CacheKey& key) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT) return nullptr;
    refuse_cache(path, errno);
  }
  const bool is_stream = key.size == CacheKey::kStream;
  const int64_t length = length_of(file.get(), path);
  const Beginning beginning = beginning_of(file.get(), length, path, key);
  if (beginning == Beginning::kOlder) return nullptr;
  End end;
  const int64_t places_end = length - static_cast<int64_t>(sizeof end);
  const bool has_end = beginning == Beginning::kHead && places_end >= kHeadSize &&
                       read_at(file.get(), &end, sizeof end, places_end) && end.magic == kEndMagic;
  const auto places = has_end ? bytes_at(file.get(), end.place, places_end, kPlaces) : std::nullopt;
  std::shared_ptr<ElementFile> opened(new ElementFile(path, std::move(file)));
  if (places && places->size() % sizeof(int64_t) == 0) {
    opened->end_ = end.place;
    opened->places_.resize(places->size() / sizeof(int64_t));
    if (!places->empty()) std::memcpy(opened->places_.data(), places->data(), places->size());
    if (is_stream || opened->size() == key.size) return opened;
  }
  if (!is_stream) return nullptr;
  throw_damaged(path, has_end ? "the places of its elements fail their checksum" : "its end is missing");
}

std::optional<Batch> ElementFile::find(int64_t i) const {
  const int64_t place = places_.at(static_cast<std::size_t>(i));
  if (auto element = element_at(file_.get(), place, end_, i)) return element;
  throw_damaged(path_, fmt::format("element {} of {}, at byte {}, fails its checksum", i, size(), place));
}

std::shared_ptr<ElementRecording> ElementRecording::begin(const std::string& path, const CacheKey& key) {
  const std::string part = part_of(path);
  FileDescriptor file(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644));
  if (!file.is_open()) refuse_cache(part, errno);
  if (!is_locked(file.get(), part)) return nullptr;
  std::shared_ptr<ElementRecording> recording(new ElementRecording(path, key, true, std::move(file)));
  // The one that had the lock before may have finished or removed the file that was opened here.
  if (!recording->is_there()) return nullptr;
  const int64_t length = length_of(recording->file_.get(), part);
  Head head{.size = key.size};  // what a short file lacks of it counts as right
  const bool is_begun =
      read_at(recording->file_.get(), &head, static_cast<std::size_t>(std::min(length, kHeadSize)), 0) &&
      (head.magic == kOlderStreamMagic || (head.magic == kMagic && head.size == key.size));
  if (!is_begun) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' lies where a stream's cache would be written, and was not begun by one", part),
                    "move it away, or give another path");
  }
  if (ftruncate(recording->file_.get(), 0) != 0) refuse_cache(part, errno);
  recording->is_begun_ = true;
  return recording;
}

std::shared_ptr<ElementRecording> ElementRecording::resume(const std::string& path, const CacheKey& key) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file.is_open()) refuse_cache(path, errno);
  length_of(file.get(), path);  // refuses what is no plain file
  if (!is_locked(file.get(), path)) return nullptr;
  const int64_t length = length_of(file.get(), path);
  const Beginning beginning = beginning_of(file.get(), length, path, key);
  std::shared_ptr<ElementRecording> recording(new ElementRecording(path, key, false, std::move(file)));
  recording->places_.assign(static_cast<std::size_t>(key.size), -1);
  if (beginning == Beginning::kHead) recording->find_records(length);
  recording->missing_ = std::count(recording->places_.begin(), recording->places_.end(), -1);
  {
    const std::lock_guard<std::mutex> lock(recording->mutex_);
    // Behind the records nothing stays that could be taken for one, or for an end.
    const bool is_written = ftruncate(recording->file_.get(), recording->end_) == 0 && recording->append({});
    if (!is_written) recording->give_up(error_text());
  }
  if (recording->missing_ == 0) recording->finish();
  return recording;
}

void ElementRecording::find_records(int64_t length) {
  RecordHead head;
  for (end_ = kHeadSize; length - end_ >= kRecordHeadSize && read_at(file_.get(), &head, sizeof head, end_);) {
    const bool fits = head.number < places_.size() && head.length > 0 &&
                      head.length <= static_cast<uint64_t>(length - end_ - kRecordHeadSize);
    if (!fits) break;
    places_[head.number] = end_;
    end_ += kRecordHeadSize + static_cast<int64_t>(head.length);
  }
}

ElementRecording::~ElementRecording() {
  if (is_begun_ && !process_.is_in_child() && is_there()) unlink(part_of(path_).c_str());  // while the lock is held
}

bool ElementRecording::is_there() const {
  struct stat opened {};
  struct stat there {};
  return fstat(file_.get(), &opened) == 0 && lstat(part_of(path_).c_str(), &there) == 0 &&
         opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
}

bool ElementRecording::append(const std::string& bytes) {
  if (end_ == 0) {
    std::string head;
    ByteWriter(head).put(Head{.digest = key_.digest, .size = key_.size});
    if (!write_at(file_.get(), head, 0)) return false;
    end_ = kHeadSize;
  }
  return write_at(file_.get(), bytes, end_);
}

bool ElementRecording::give_up(const std::string& why) {
  log(LogLevel::kWarning,
      fmt::format("the cache '{}' takes no more elements: {}; {}", path_, why,
                  is_beside_ ? "the stream is read each time" : "what it does not have is read each time"));
  is_closed_ = true;
  if (!is_beside_) {
    [[maybe_unused]] const int ignored = ftruncate(file_.get(), end_);  // what is cut off is dropped by resume() too
  } else if (is_there()) {
    unlink(part_of(path_).c_str());
  }
  return false;
}

int64_t ElementRecording::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(places_.size());
}

std::optional<Batch> ElementRecording::find(int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  std::unique_lock<std::mutex> lock(mutex_);
  if (at >= places_.size() || places_[at] < 0) return std::nullopt;
  const int64_t place = places_[at];
  const int64_t end = end_;
  lock.unlock();
  if (auto element = element_at(file_.get(), place, end, i)) return element;
  lock.lock();
  if (places_[at] == place && !is_closed_) {
    places_[at] = -1;
    ++missing_;
  }
  return std::nullopt;
}

bool ElementRecording::add(int64_t i, const Batch& element) {
  if (process_.is_in_child()) return false;
  const bool is_plain = can_be_kept(element);
  const std::string record = is_plain ? record_of(static_cast<uint64_t>(i), element) : std::string();
  bool is_last = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return false;
    if (!is_plain)
      return give_up("an element has no input, or a tensor that is sparse, quantized or not in the host's memory");
    const auto at = static_cast<std::size_t>(i);
    if (at >= places_.size()) places_.resize(at + 1, -1);
    if (places_[at] >= 0) return true;
    if (!append(record)) return give_up(error_text());
    places_[at] = end_;
    end_ += static_cast<int64_t>(record.size());
    is_last = !is_beside_ && --missing_ == 0;
  }
  return !is_last || finish();
}

bool ElementRecording::finish() {
  if (process_.is_in_child()) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return false;
    if (is_beside_ && !is_there()) return give_up("somebody has removed it meanwhile");
    std::string places;
    ByteWriter(places).put_all(places_);
    std::string end = record_of(kPlaces, places);
    ByteWriter(end).put(End{.place = std::max(end_, kHeadSize)});
    if (!append(end)) return give_up(error_text());
    is_closed_ = true;
  }
  // Others may find elements meanwhile.
  const bool is_done =
      fsync(file_.get()) == 0 && (!is_beside_ || std::rename(part_of(path_).c_str(), path_.c_str()) == 0);
  if (is_done) return true;
  const std::string why = error_text();
  const std::lock_guard<std::mutex> lock(mutex_);
  return give_up(why);
}

}  // namespace lockstep::internal::data
