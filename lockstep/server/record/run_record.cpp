// A file is "LSRECORD", the version (4 bytes), and chunks: a type (1 byte), the length of the content (4 bytes), an
// XXH3 digest of both and the content (8 bytes), the content. Types: 'R' begins a run, and its content is the JSON of
// the program; 'E' has events; 'Z' ends the run. Numbers are little-endian; those of events have 7 bits in a byte,
// lowest first, and the eighth says that more follow.
#include "lockstep/server/record/run_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

namespace {

constexpr std::string_view kMagic = "LSRECORD";
constexpr uint32_t kVersion = 1;
constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kBeforeContent = 1 + 4 + 8;
constexpr uint64_t kMostPulls = uint64_t{1} << 20;  // of a step, in a file that is read

// The first byte of an event: its kind, and what of it is as usual.
constexpr uint8_t kKindBits = 0x07;
constexpr uint8_t kDone = 0x08;
constexpr uint8_t kPushed = 0x10;
constexpr uint8_t kSameFunction = 0x20;
constexpr uint8_t kOneState = 0x40;  // all pulls saw the same
constexpr uint8_t kLate = 0x80;

void put_number(uint64_t number, std::string& bytes) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<char>(number | 0x80));
  bytes.push_back(static_cast<char>(number));
}

bool get_number(std::string_view& bytes, uint64_t& number) {
  number = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    number |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/// A difference of either sign: small ones have few bits.
void put_difference(uint64_t now, uint64_t before, std::string& bytes) {
  const uint64_t difference = now - before;
  put_number((difference << 1) ^ (difference >> 63 ? ~uint64_t{0} : 0), bytes);
}

template <class T>
bool get_difference(std::string_view& bytes, T& value) {  // of the value before
  uint64_t number = 0;
  if (!get_number(bytes, number)) return false;
  value = static_cast<T>(static_cast<uint64_t>(value) + ((number >> 1) ^ (~(number & 1) + 1)));
  return true;
}

void put_digest(uint32_t digest, std::string& bytes) {
  for (int shift = 0; shift < 24; shift += 8) bytes.push_back(static_cast<char>(digest >> shift));
}

bool get_digest(std::string_view& bytes, uint32_t& digest) {
  if (bytes.size() < 3) return false;
  digest = 0;
  for (int at = 0; at < 3; ++at)
    digest |= uint32_t{static_cast<uint8_t>(bytes[static_cast<std::size_t>(at)])} << 8 * at;
  bytes.remove_prefix(3);
  return true;
}

template <class T>
bool get_small(std::string_view& bytes, T& value, uint64_t most) {
  uint64_t number = 0;
  if (!get_number(bytes, number) || number > most) return false;
  value = static_cast<T>(number);
  return true;
}

uint64_t digest_of(char type, std::string_view content) {
  return XXH3_64bits_withSeed(content.data(), content.size(), static_cast<uint8_t>(type));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void refuse_to_write(const std::filesystem::path& path, const std::string& reason) {
  throw DataError("LS-FILE", fmt::format("the record '{}' cannot be written: {}", path.string(), reason),
                  "name a plain file, or a new one, in a folder of yours on a disk with room");
}

constexpr const char* kGiveARecord = "give the file that .record of ParameterServerOptions has named";

[[noreturn]] void refuse_to_read(const std::filesystem::path& path, const std::string& reason) {
  throw DataError("LS-RUN-RECORD",
                  fmt::format("'{}' is no record of a run that can be read: {}", path.string(), reason), kGiveARecord);
}

[[noreturn]] void fail_to_read(const std::filesystem::path& path, const std::string& reason) {
  throw DataError("LS-FILE", fmt::format("the record '{}' cannot be read: {}", path.string(), reason), kGiveARecord);
}

/// Says nothing of the file where this process has no descriptor left.
FileDescriptor opened(const std::filesystem::path& path, int flags,
                      void (*refuse)(const std::filesystem::path&, const std::string&)) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666));
  if (file.is_open()) return file;
  const int error = errno;
  if (!is_out_of_descriptors(error)) refuse(path, std::strerror(error));
  throw DataError("LS-FILE-LIMIT",
                  fmt::format("the record '{}' cannot be opened: {}", path.string(), text_of_open_error(error)),
                  kMoreDescriptors);
}

/// Reads until `bytes` has `most` of them; fewer at the end of the file.
void read_to(std::size_t most, const FileDescriptor& file, const std::filesystem::path& path, std::string& bytes) {
  std::size_t size = bytes.size();
  bytes.resize(most);
  while (size < most) {
    const ssize_t read = ::read(file.get(), bytes.data() + size, most - size);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) fail_to_read(path, std::strerror(errno));
    if (read == 0) break;
    size += static_cast<std::size_t>(read);
  }
  bytes.resize(size);
}

bool is_plain(const struct stat& status) { return S_ISREG(status.st_mode); }

/// Which number the bytes of a record give as its version; nothing where they do not begin as one.
std::optional<uint32_t> version_of(std::string_view bytes) {
  ByteReader reader(bytes);
  std::string_view magic;
  uint32_t version = 0;
  if (!reader.get_bytes(kMagic.size(), magic) || magic != kMagic || !reader.get(version)) return std::nullopt;
  return version;
}

/// The bytes of a file that begins as a record of this version. A pipe or a device, which may have no end, is refused.
std::string bytes_of_record(const std::filesystem::path& path) {
  const FileDescriptor file = opened(path, O_RDONLY, fail_to_read);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_to_read(path, std::strerror(errno));
  if (!is_plain(status)) fail_to_read(path, "it is no plain file");
  std::string bytes;
  read_to(kMagic.size() + sizeof(kVersion), file, path, bytes);
  const std::optional<uint32_t> version = version_of(bytes);
  if (!version) refuse_to_read(path, "it does not begin as one");
  if (*version != kVersion)
    refuse_to_read(path, fmt::format("it has version {}, and this build reads version {}", *version, kVersion));
  read_to(std::max(bytes.size(), static_cast<std::size_t>(status.st_size)), file, path, bytes);
  return bytes;
}

/// Adds the events of a chunk; false where it is not what a writer makes.
bool add_events(std::string_view content, std::vector<RecordEvent>& events) {
  EventCoder coder;
  while (!content.empty()) {
    if (!coder.get(content, events.emplace_back())) return false;
  }
  return true;
}

}  // namespace

void EventCoder::put(const RecordEvent& event, std::string& bytes) {
  using Kind = RecordEvent::Kind;
  const bool one_state = std::ranges::all_of(event.states, [&](Position one) { return one == event.states.front(); });
  uint8_t first = static_cast<uint8_t>(event.kind);
  if (event.outcome == StepOutcome::kDone) first |= kDone;
  if (event.pushed) first |= kPushed;
  if (event.function == function_) first |= kSameFunction;
  if (one_state) first |= kOneState;
  if (event.is_late) first |= kLate;
  bytes.push_back(static_cast<char>(first));
  if (event.kind != Kind::kRan || event.outcome != StepOutcome::kDone) {
    put_difference(static_cast<uint64_t>(event.scheduled), static_cast<uint64_t>(scheduled_), bytes);
    scheduled_ = event.scheduled;
  }
  if (event.kind == Kind::kRan || event.kind == Kind::kGivenUp) {
    put_difference(static_cast<uint64_t>(event.step), static_cast<uint64_t>(step_), bytes);
    step_ = event.step;
  }
  if (event.kind == Kind::kChanged || event.kind == Kind::kRead) put_number(event.state, bytes);
  if (event.kind != Kind::kRan) return;
  put_number(static_cast<uint64_t>(event.worker), bytes);
  if (event.function != function_) put_number(event.function, bytes);
  function_ = event.function;
  if (event.outcome != StepOutcome::kDone) put_number(static_cast<uint64_t>(event.outcome), bytes);
  put_digest(event.data, bytes);
  put_digest(event.push, bytes);
  put_number(event.states.size(), bytes);
  for (const Position state : event.states) {
    put_difference(state, state_, bytes);
    state_ = state;
    if (one_state) break;
  }
}

bool EventCoder::get(std::string_view& bytes, RecordEvent& event) {
  using Kind = RecordEvent::Kind;
  if (bytes.empty()) return false;
  const auto first = static_cast<uint8_t>(bytes.front());
  bytes.remove_prefix(1);
  event = {.kind = static_cast<Kind>(first & kKindBits)};
  const bool is_done = (first & kDone) != 0;
  event.pushed = (first & kPushed) != 0;
  event.is_late = (first & kLate) != 0;
  if (event.kind != Kind::kRan || !is_done) {
    if (!get_difference(bytes, scheduled_)) return false;
    event.scheduled = scheduled_;
  }
  if (event.kind == Kind::kRan || event.kind == Kind::kGivenUp) {
    if (!get_difference(bytes, step_)) return false;
    event.step = step_;
  }
  if ((event.kind == Kind::kChanged || event.kind == Kind::kRead) && !get_number(bytes, event.state)) return false;
  if (event.kind > Kind::kRead) return false;
  if (event.kind != Kind::kRan) return true;
  if (!get_small(bytes, event.worker, INT32_MAX)) return false;
  if ((first & kSameFunction) == 0 && !get_small(bytes, function_, UINT32_MAX)) return false;
  event.function = function_;
  if (!is_done) {
    if (!get_small(bytes, event.outcome, static_cast<uint64_t>(StepOutcome::kWithdrawn))) return false;
    if (event.outcome == StepOutcome::kDone) return false;
  }
  uint64_t pulls = 0;
  if (!get_digest(bytes, event.data) || !get_digest(bytes, event.push) || !get_number(bytes, pulls)) return false;
  const bool one_state = (first & kOneState) != 0;
  if (one_state ? pulls > kMostPulls : pulls > bytes.size()) return false;  // decides an allocation
  for (uint64_t pull = 0; pull < pulls; ++pull) {
    if ((!one_state || pull == 0) && !get_difference(bytes, state_)) return false;
    event.states.push_back(state_);
  }
  return true;
}

ReplayRecord read_record(const std::filesystem::path& file) {
  const std::string all = bytes_of_record(file);
  ByteReader reader(std::string_view(all).substr(kMagic.size() + sizeof(kVersion)));
  ReplayRecord record;
  while (!reader.at_end() && record.torn.empty()) {
    const auto at = static_cast<std::size_t>(reader.left().data() - all.data());
    uint8_t type = 0;
    uint32_t size = 0;
    uint64_t digest = 0;
    std::string_view content;
    const bool is_whole = reader.get(type) && reader.get(size) && reader.get(digest) &&
                          reader.get_bytes(size, content) && digest == digest_of(static_cast<char>(type), content);
    const bool is_in_run = !record.runs.empty() && !record.runs.back().is_whole;
    bool is_right = is_whole;
    if (is_whole && type == 'R') {
      record.runs.push_back({.program = std::string(content)});
    } else if (is_whole && type == 'E' && is_in_run) {
      is_right = add_events(content, record.runs.back().events);
    } else if (is_whole && type == 'Z' && is_in_run) {
      record.runs.back().is_whole = true;
    } else {
      is_right = false;
    }
    if (!is_right) record.torn = fmt::format("nothing can be read from byte {} of {} on", at, all.size());
  }
  if (record.runs.empty()) refuse_to_read(file, "it ends before its first run");
  return record;
}

RecordFile::RecordFile(const std::filesystem::path& file)
    : path_(file), file_(opened(file, O_CREAT | O_RDWR, refuse_to_write)) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !is_plain(status)) refuse_to_write(path_, "it is no plain file");
  // Two runs that write one file would leave none of their records. Where there are no locks, nobody can tell.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    refuse_to_write(path_, "another run is writing it");
  // A mistyped name must not cost the program's data.
  std::string before;
  if (status.st_size > 0) read_to(kMagic.size() + sizeof(kVersion), file_, path_, before);
  if (status.st_size > 0 && !version_of(before))
    refuse_to_write(path_, "it has something else than a record, which stays");
  replaces_ = status.st_size > 0;
  if (::lseek(file_.get(), 0, SEEK_SET) != 0 || ::ftruncate(file_.get(), 0) != 0)
    refuse_to_write(path_, std::strerror(errno));
  std::string begin(kMagic);
  ByteWriter(begin).put(kVersion);
  write(begin);
}

RecordFile::~RecordFile() {
  try {
    flush();
  } catch (const DataError&) {
    // Whoever needs to know has called flush().
  }
}

void RecordFile::begin_run(const std::string& program) { write_chunk('R', program); }

void RecordFile::add(const RecordEvent& event) {
  if (waiting_.empty()) coder_ = {};
  coder_.put(event, waiting_);
  if (waiting_.size() >= kChunkBytes || seconds_now() - written_at_ >= 1) flush();
}

void RecordFile::end_run() {
  flush();
  write_chunk('Z', {});
}

void RecordFile::flush() {
  if (waiting_.empty()) return;
  const std::string content = std::exchange(waiting_, {});
  write_chunk('E', content);
}

void RecordFile::write_chunk(char type, std::string_view content) {
  std::string bytes;
  bytes.reserve(kBeforeContent + content.size());
  ByteWriter writer(bytes);
  writer.put(static_cast<uint8_t>(type));
  writer.put(static_cast<uint32_t>(content.size()));
  writer.put(digest_of(type, content));
  bytes += content;
  write(bytes);
  written_at_ = seconds_now();
}

void RecordFile::write(std::string_view bytes) {
  if (!failure_.empty()) refuse_to_write(path_, failure_);  // a reader stops at a chunk that is torn
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      failure_ = std::strerror(errno);
      refuse_to_write(path_, failure_);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace lockstep::internal::server
