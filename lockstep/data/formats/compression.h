// Which compression a file is in, by its first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal::inline data {

enum class Compression : uint8_t { kNone, kGzip };

/// How many of a file's first bytes decide.
constexpr std::size_t kDecidingBytes = 16;

/// The compression of a file that begins with `first`: its kDecidingBytes, fewer where it has fewer. Its name does not
/// decide, with one exception: a file whose name ends with .gz or .tgz, and that ends before anything can be told, is
/// one of gzip that is cut off. Throws a DataError that names any other compression: only gzip is read.
Compression compression_of(std::string_view first, const std::string& path);

}  // namespace lockstep::internal::data
