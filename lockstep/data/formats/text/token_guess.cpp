#include "lockstep/data/formats/text/token_guess.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kFewest = 8;                   // tokens that can tell something
constexpr int64_t kNoVocabulary = int64_t{1} << 24;  // larger than any
constexpr int64_t kMostTokens = int64_t{1} << 20;    // of the larger vocabularies in use

uint64_t value_of(std::string_view bytes, bool is_big_endian = false) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::size_t from = is_big_endian ? i : bytes.size() - 1 - i;
    value = value << 8 | static_cast<unsigned char>(bytes[from]);
  }
  return value;
}

int64_t token_of(std::string_view bytes, bool is_signed, bool is_big_endian = false) {
  const int unused = 64 - 8 * static_cast<int>(bytes.size());
  const auto at_top = static_cast<int64_t>(value_of(bytes, is_big_endian) << unused);
  return is_signed ? at_top >> unused : static_cast<int64_t>(static_cast<uint64_t>(at_top) >> unused);
}

/// Whether the sample is one of wider tokens. Read as narrower ones, all but the first part of each are 0, or -1 where
/// it is negative; those of a large vocabulary have a few bits in the second 16.
bool is_wider(std::string_view sample, std::size_t narrow, std::size_t wide) {
  const std::size_t count = sample.size() / wide;
  std::size_t positive = 0;
  std::size_t beyond = 0;  // tokens that do not fit into the narrow width
  uint64_t largest_part = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int64_t token = token_of(sample.substr(i * wide, wide), true);
    if (token >= kMostTokens || token < -kMostTokens) return false;
    const uint64_t part = value_of(sample.substr(i * wide, narrow));
    largest_part = std::max(largest_part, part);
    if (token > 0 && part > 0) ++positive;
    if (token >= int64_t{1} << (8 * narrow)) ++beyond;
  }
  if (count < kFewest || 2 * positive < count) return false;
  if (beyond == 0) return true;
  // Their upper parts look like small tokens: only where others are large is that strange.
  if (wide == 2) return false;
  return count >= 4 * kFewest && (narrow == 1 || largest_part >= 4096);
}

}  // namespace

std::optional<std::string> other_tokens(std::string_view sample, const TokenLayout& layout) {
  const auto width = static_cast<std::size_t>(layout.width);
  for (const std::size_t wide : {8, 4, 2}) {
    if (wide > width && layout.bytes % static_cast<int64_t>(wide) == 0 && is_wider(sample, width, wide))
      return fmt::format("tokens of {} bytes", wide);
  }
  const std::size_t count = sample.size() / width;
  if (width == 1 || count < kFewest) return std::nullopt;
  std::size_t large = 0;
  std::size_t small_swapped = 0;  // would be tokens of a vocabulary in the other order
  std::size_t byte_swapped = 0;   // have one byte in the other order
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view bytes = sample.substr(i * width, width);
    const int64_t token = token_of(bytes, layout.is_signed);
    const int64_t swapped = token_of(bytes, layout.is_signed, /*is_big_endian=*/true);
    if (token >= kNoVocabulary || token < -kNoVocabulary) ++large;
    if (swapped >= 0 && swapped < kMostTokens) ++small_swapped;
    if (token == 0) ++zeros;
    if (token != 0 && swapped > 0 && swapped < 256) ++byte_swapped;
  }
  const bool is_of_bytes = 2 * byte_swapped >= count && byte_swapped + zeros == count;
  if (width == 2) return is_of_bytes ? std::optional<std::string>("tokens in big-endian") : std::nullopt;
  if (layout.vocabulary >= kNoVocabulary || 2 * large < count) return std::nullopt;
  return small_swapped == count ? "tokens in big-endian" : "narrower tokens, or no tokens";
}

int64_t known_header(std::string_view begin) {
  if (begin.starts_with("\x93NUMPY") && begin.size() >= 12) {
    return begin[6] == 1 ? 10 + static_cast<int64_t>(value_of(begin.substr(8, 2)))
                         : 12 + static_cast<int64_t>(value_of(begin.substr(8, 4)));
  }
  constexpr uint64_t kLlmC = 20240520;
  return begin.size() >= 4 && value_of(begin.substr(0, 4)) == kLlmC ? 1024 : 0;
}

}  // namespace lockstep::internal::data
