#include "lockstep/data/formats/records/tar_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "lockstep/cluster/named_text.h"

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kBlock = 512;
constexpr uint64_t kLongestName = 1 << 20;  // of a long name's or a pax header's contents

using Block = std::array<char, kBlock>;

[[noreturn]] void damaged(int64_t offset, const std::string& what) {
  throw TarDamage(fmt::format("the header at byte {} {}", offset, what));
}

/// A text of a header: it ends at its first zero.
std::string_view text(const Block& block, std::size_t offset, std::size_t length) {
  const std::string_view whole(block.data() + offset, length);
  return whole.substr(0, whole.find('\0'));
}

/// A number of a header: octal digits between blanks, or, where the first bit is set, a large one in binary.
std::optional<uint64_t> number(const Block& block, std::size_t offset, std::size_t length) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(block[offset]) & 0x80) != 0) {
    for (std::size_t i = 0; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(block[offset + i]);
      if (value >> 55 != 0) return std::nullopt;  // it is below 2^63 with the byte that follows
      value = value << 8 | (i == 0 ? byte & 0x7fu : byte);
    }
    return value;
  }
  std::string_view digits = text(block, offset, length);
  while (digits.starts_with(' ')) digits.remove_prefix(1);
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  for (const char c : digits) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(c - '0');  // 12 digits at most
  }
  return value;
}

bool checksum_holds(const Block& block) {
  uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(block[i]);
  return number(block, 148, 8) == sum;
}

std::string name_of(const Block& block) {
  const std::string name(text(block, 0, 100));
  const bool is_posix = std::string_view(block.data() + 257, 6) == std::string_view("ustar\0", 6);
  const std::string_view prefix = is_posix ? text(block, 345, 155) : std::string_view();
  return prefix.empty() ? name : fmt::format("{}/{}", prefix, name);
}

uint64_t padding_of(uint64_t size) { return (kBlock - size % kBlock) % kBlock; }

/// What pax headers say about the file that follows.
struct Overrides {
  std::optional<std::string> name = std::nullopt;
  std::optional<uint64_t> size = std::nullopt;
};

/// Records "<length> <key>=<value>\n", the length being that of the record.
void read_pax(std::string_view records, int64_t offset, Overrides& overrides) {
  while (!records.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(end - records.data());
    if (error != std::errc() || length > records.size() || length < digits + 2 || records[digits] != ' ' ||
        records[length - 1] != '\n') {
      damaged(offset, "has a pax record that is damaged");
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) damaged(offset, "has a pax record without a value");
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path") overrides.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) damaged(offset, "is of a sparse file, which is not supported");
    if (key != "size") continue;
    uint64_t size = 0;
    const auto [size_end, size_error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (size_error != std::errc() || size_end != value.data() + value.size() || size > INT64_MAX) {
      damaged(offset, fmt::format("has a pax record with the size {}", in_quotes(value)));
    }
    overrides.size = size;
  }
}

/// The contents that belong to a header: a long name, or pax records.
std::string contents(Input& input, int64_t offset, uint64_t size) {
  if (size > kLongestName) damaged(offset, fmt::format("has a name or attributes of {} bytes", size));
  std::string bytes;
  if (input.append(bytes, size) < size || input.skip(padding_of(size)) < padding_of(size)) {
    damaged(offset, "is followed by the end of the file");
  }
  return bytes;
}

/// Behind an archive's mark of its end: nothing may follow but zeros.
void expect_zeros(Input& input) {
  for (std::string_view there = input.peek(); !there.empty(); there = input.peek()) {
    const auto* const other = std::find_if(there.begin(), there.end(), [](char c) { return c != '\0'; });
    input.skip(static_cast<uint64_t>(other - there.begin()));
    if (other != there.end())
      throw TarDamage(fmt::format("the archive has ended, and at byte {} more follows", input.offset()));
  }
}

}  // namespace

std::optional<TarMember> next_tar_member(Input& input) {
  int64_t begin = input.offset();
  Overrides overrides;
  while (true) {
    const int64_t here = input.offset();
    Block block;
    const std::size_t got = input.read(block.data(), kBlock);
    if (got < kBlock)
      throw TarDamage(fmt::format("the archive is cut off at byte {}, without its mark of the end", input.offset()));
    if (std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; })) {
      expect_zeros(input);
      return std::nullopt;
    }
    if (!checksum_holds(block)) damaged(here, "fails its checksum, or is no header of a tar archive");
    const std::optional<uint64_t> size = number(block, 124, 12);
    if (!size) damaged(here, "has a size that is no number");
    const char type = block[156];
    if (type == 'L') {
      const std::string name = contents(input, here, *size);
      overrides.name = name.substr(0, name.find('\0'));
      continue;
    }
    if (type == 'x') {
      read_pax(contents(input, here, *size), here, overrides);
      continue;
    }
    if (type == 'S') damaged(here, "is of a sparse file, which is not supported");
    TarMember member{begin, overrides.name.value_or(name_of(block)), overrides.size.value_or(*size)};
    const bool is_file = type == '0' || type == '\0' || type == '7';
    if (is_file && !member.name.ends_with('/')) return member;
    // Nothing follows the headers of links, devices, folders and pipes, whatever size they name.
    if (type < '1' || type > '6') skip_tar_contents(input, member, member.size);
    if (type == 'K' || type == 'g') continue;  // the file's own header comes later
    overrides = {};
    begin = input.offset();
  }
}

void skip_tar_contents(Input& input, const TarMember& member, uint64_t left) {
  const uint64_t there = left + padding_of(member.size);
  if (input.skip(there) < there) {
    throw TarDamage(fmt::format("the file {} of {} bytes is cut off at byte {}", in_quotes(member.name), member.size,
                                input.offset()));
  }
}

}  // namespace lockstep::internal::data
