#include "lockstep/checkpoint/formats/zip_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/formats/strict_json.h"

namespace lockstep::internal::inline checkpoint {

namespace {

/// Numbers in a piece of the file, little-endian.
class Piece {
 public:
  Piece(const OpenFile& file, uint64_t offset, uint64_t size, const std::string& what) : what_(what) {
    if (offset > file.size() || size > file.size() - offset) throw_damaged(what, "ends in the middle of its list");
    bytes_.resize(size);
    file.read(offset, std::as_writable_bytes(std::span(bytes_)));
  }
  std::string_view text(uint64_t offset, uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) throw_damaged(what_, "ends in the middle of its list");
    return std::string_view(bytes_).substr(offset, size);
  }
  uint64_t number(uint64_t offset, uint64_t size) const {
    uint64_t value = 0;
    const std::string_view bytes = text(offset, size);
    for (uint64_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    return value;
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  const std::string& what_;
  std::string bytes_;
};

constexpr uint64_t kEndSize = 22;
constexpr uint64_t kIn64 = 0xffffffff;  // the true number is in a field of 64 bits

struct Directory {
  uint64_t begin = 0;
  uint64_t size = 0;
  uint64_t entries = 0;
};

Directory directory_of(const OpenFile& file, const std::string& what) {
  constexpr uint64_t kLongestComment = 65535;
  const uint64_t size = std::min(file.size(), kEndSize + kLongestComment);
  const Piece tail(file, file.size() - size, size, what);
  std::optional<uint64_t> end;
  for (uint64_t at = size < kEndSize ? 0 : size - kEndSize + 1; at-- > 0 && !end;) {
    if (tail.text(at, 4) == "PK\5\6" && at + kEndSize + tail.number(at + 20, 2) == size) end = at;
  }
  if (!end) throw_damaged(what, "is no zip file: it has no list of entries at its end");
  if (tail.number(*end + 4, 2) != 0 || tail.number(*end + 6, 2) != 0) throw_damaged(what, "is a zip file in parts");
  Directory found{
      .begin = tail.number(*end + 16, 4), .size = tail.number(*end + 12, 4), .entries = tail.number(*end + 10, 2)};
  constexpr uint64_t kLocatorSize = 20;
  const uint64_t end_at = file.size() - size + *end;
  if (end_at >= kLocatorSize) {
    const Piece locator(file, end_at - kLocatorSize, kLocatorSize, what);
    if (locator.text(0, 4) == std::string_view("PK\6\7")) {
      const Piece end64(file, locator.number(8, 8), 56, what);
      if (end64.text(0, 4) != std::string_view("PK\6\6")) throw_damaged(what, "has no list of entries where it says");
      found = {.begin = end64.number(48, 8), .size = end64.number(40, 8), .entries = end64.number(32, 8)};
    }
  }
  if (found.begin > file.size() || found.size > file.size() - found.begin) {
    throw_damaged(what, "has its list of entries beyond its end");
  }
  return found;
}

/// Replaces numbers that did not fit by those of the field for 64 bits, in their order.
void widen(const Piece& list, uint64_t extra, uint64_t extra_size, std::initializer_list<uint64_t*> numbers,
           const std::string& what) {
  for (uint64_t at = 0; at + 4 <= extra_size;) {
    const uint64_t id = list.number(extra + at, 2);
    const uint64_t size = list.number(extra + at + 2, 2);
    if (id == 1) {
      uint64_t next = at + 4;
      for (uint64_t* const number : numbers) {
        if (*number != kIn64) continue;
        if (next + 8 > at + 4 + size || next + 8 > extra_size) throw_damaged(what, "has an entry without its size");
        *number = list.number(extra + next, 8);
        next += 8;
      }
      return;
    }
    at += 4 + size;
  }
}

}  // namespace

std::map<std::string, ZipEntry> entries_of_zip(const OpenFile& file, const std::string& what) {
  const Directory directory = directory_of(file, what);
  const Piece list(file, directory.begin, directory.size, what);
  std::map<std::string, ZipEntry> entries;
  uint64_t at = 0;
  constexpr uint64_t kRecordSize = 46;
  constexpr uint64_t kLocalSize = 30;
  for (; at < list.size();) {
    if (list.text(at, 4) != "PK\1\2") throw_damaged(what, "has something else in its list of entries");
    const uint64_t name_size = list.number(at + 28, 2);
    const uint64_t extra_size = list.number(at + 30, 2);
    const uint64_t comment_size = list.number(at + 32, 2);
    const std::string name(list.text(at + kRecordSize, name_size));
    const std::string whose = fmt::format("{}: entry '{}'", what, shown(name));
    if ((list.number(at + 8, 2) & 1) != 0) throw_damaged(whose, "is encrypted");
    uint64_t packed_size = list.number(at + 20, 4);
    uint64_t size = list.number(at + 24, 4);
    uint64_t local = list.number(at + 42, 4);
    widen(list, at + kRecordSize + name_size, extra_size, {&size, &packed_size, &local}, whose);
    const bool is_stored = list.number(at + 10, 2) == 0;
    if (is_stored && packed_size != size) throw_damaged(whose, "has two sizes");
    const Piece head(file, local, kLocalSize, whose);
    if (head.text(0, 4) != "PK\3\4") throw_damaged(whose, "is not where the list says");
    const uint64_t begin = local + kLocalSize + head.number(26, 2) + head.number(28, 2);
    if (begin > file.size() || packed_size > file.size() - begin) throw_damaged(whose, "does not lie in the file");
    if (!entries.emplace(name, ZipEntry{begin, packed_size, static_cast<uint32_t>(list.number(at + 16, 4)), is_stored})
             .second) {
      throw_damaged(whose, "is there twice");
    }
    at += kRecordSize + name_size + extra_size + comment_size;
  }
  if (at != list.size() || entries.size() != directory.entries) {
    throw_damaged(what, "has a list of entries that is not as long as it says");
  }
  // Or many entries of few bytes would be read into much memory.
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : entries) ranges.emplace_back(entry.begin, entry.begin + entry.size);
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) throw_damaged(what, "has entries that lie over each other");
  }
  return entries;
}

}  // namespace lockstep::internal::checkpoint
