#include "lockstep/data/formats/compression.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

using namespace std::string_view_literals;

struct OtherCompression {
  std::string_view begin;
  const char* name;
  const char* remedy;
};

constexpr std::array kOthers{
    OtherCompression{"\x28\xb5\x2f\xfd"sv, "zstd", "zstd -d"},
    OtherCompression{"\xfd\x37\x7a\x58\x5a\x00"sv, "xz", "xz -d"},
    OtherCompression{"\x04\x22\x4d\x18"sv, "lz4", "lz4 -d"},
    OtherCompression{"\x02\x21\x4c\x18"sv, "lz4, in its legacy format", "lz4 -d"},
    OtherCompression{"LZIP\x01"sv, "lzip", "lzip -d"},
    OtherCompression{"PK\x03\x04"sv, "zip", "unzip"},
    OtherCompression{"7z\xbc\xaf\x27\x1c"sv, "7-Zip", "7z x"},
};

/// "BZh", a digit, and what a block or the end of the stream begins with: a text may begin with less of it.
bool is_bzip2(std::string_view first) {
  if (first.size() < 10 || !first.starts_with("BZh") || first[3] < '1' || first[3] > '9') return false;
  const std::string_view block = first.substr(4, 6);
  return block == "\x31\x41\x59\x26\x53\x59"sv || block == "\x17\x72\x45\x38\x50\x90"sv;
}

/// A frame that readers of zstd and lz4 pass over.
bool is_skippable_frame(std::string_view first) {
  return first.size() >= 4 && (first[0] & 0xf0) == 0x50 && first.substr(1, 3) == "\x2a\x4d\x18"sv;
}

[[noreturn]] void refuse(const std::string& path, const char* name, const char* command) {
  throw DataError("LS-DATA-FILE", fmt::format("'{}' is compressed with {}, which is not read", path, name),
                  fmt::format("decompress it ({}), or compress it with gzip", command));
}

}  // namespace

Compression compression_of(std::string_view first, const std::string& path) {
  constexpr std::string_view kGzip = "\x1f\x8b\x08"sv;
  const bool is_named = path.ends_with(".gz") || path.ends_with(".tgz");
  // Behind the magic bytes come flags, of which the upper three must be 0.
  if (first.starts_with(kGzip))
    return first.size() < 4 || (first[3] & 0xe0) == 0 || is_named ? Compression::kGzip : Compression::kNone;
  if (first.starts_with(kGzip.substr(0, 2)) && (first.size() == 2 || is_named)) return Compression::kGzip;
  if (is_named && first.size() < 2 && kGzip.starts_with(first)) return Compression::kGzip;
  for (const OtherCompression& other : kOthers) {
    if (first.starts_with(other.begin)) refuse(path, other.name, other.remedy);
  }
  if (is_bzip2(first)) refuse(path, "bzip2", "bzip2 -d");
  if (is_skippable_frame(first)) refuse(path, "zstd or lz4", "zstd -d, lz4 -d");
  return Compression::kNone;
}

}  // namespace lockstep::internal::data
