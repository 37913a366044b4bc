#include "lockstep/data/sources/files_digest.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lockstep/data/deal/batch_rows.h"

namespace lockstep::internal::inline data {

namespace {

uint32_t short_digest(const lockstep::data::SourceFile& file) {
  return static_cast<uint32_t>(file.digest ^ file.digest >> 32);
}

}  // namespace

uint64_t digest_of_file(const std::string& path) {
  constexpr std::size_t kSampled = 4096;
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed) return 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return 0;
  uint64_t digest = mixed(size, 1);
  char bytes[kSampled];
  for (const uint64_t at :
       {uint64_t{0}, uint64_t{size / 2}, size > kSampled ? uint64_t{size - kSampled} : uint64_t{0}}) {
    in.clear();
    in.seekg(static_cast<std::streamoff>(at));
    in.read(bytes, sizeof bytes);
    digest = mixed(digest, XXH3_64bits(bytes, static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0))));
  }
  return digest;
}

uint64_t digest_of_whole_file(const std::string& path) {
  constexpr std::size_t kPiece = 1 << 20;
  std::ifstream in(path, std::ios::binary);
  if (!in) return 0;
  std::string piece(kPiece, '\0');
  uint64_t digest = 2;
  while (in.read(piece.data(), static_cast<std::streamsize>(kPiece)) || in.gcount() > 0)
    digest = mixed(digest, XXH3_64bits(piece.data(), static_cast<std::size_t>(in.gcount())));
  return in.bad() ? 0 : digest | 1;
}

lockstep::data::SourceFile file_in_memory(const std::string& path, std::string_view bytes) {
  return {path, XXH3_64bits(bytes.data(), bytes.size()) | 1};
}

uint64_t digest_of(const std::vector<lockstep::data::SourceFile>& files) {
  uint64_t digest = files.size();
  for (const lockstep::data::SourceFile& file : files) {
    if (file.digest == 0) return 0;
    digest = mixed(digest, file.digest);
  }
  return digest | 1;
}

std::vector<lockstep::data::SourceFile> joined_files(std::vector<lockstep::data::SourceFile> first,
                                                     const std::vector<lockstep::data::SourceFile>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

FilesDigest::FilesDigest(const std::vector<lockstep::data::SourceFile>& files) {
  uint32_t sum = 0;
  uint32_t weighted = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    sum += short_digest(files[i]);
    weighted += short_digest(files[i]) * static_cast<uint32_t>(i + 1);
  }
  both = static_cast<uint64_t>(weighted) << 32 | sum;
}

std::string FilesDigest::changed_since(uint64_t before, const std::vector<lockstep::data::SourceFile>& files) const {
  const auto change = static_cast<uint32_t>(both) - static_cast<uint32_t>(before);
  const auto weighted = static_cast<uint32_t>(both >> 32) - static_cast<uint32_t>(before >> 32);
  // First, because a file that was added at the end looks like one that has changed.
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (change != short_digest(files[i])) continue;
    std::vector<lockstep::data::SourceFile> others = files;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    if (FilesDigest(others).both == before) return fmt::format("'{}' was added", files[i].name);
  }
  if (change == 0) {
    return fmt::format("the files '{}' to '{}' have come into another order", files.front().name, files.back().name);
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (change * static_cast<uint32_t>(i + 1) == weighted) return fmt::format("'{}' has changed", files[i].name);
  }
  if (files.front().name == files.back().name) return fmt::format("'{}' has changed", files.front().name);
  return fmt::format("several of the files '{}' to '{}' have changed, or some are missing", files.front().name,
                     files.back().name);
}

}  // namespace lockstep::internal::data
