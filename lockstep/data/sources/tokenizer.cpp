#include "lockstep/data/sources/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/formats/text/byte_pairs.h"

namespace lockstep::data {

namespace {

constexpr int64_t kLargestFile = int64_t{1} << 28;

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const internal::BytePairs> pairs) : pairs_(std::move(pairs)) {}

const internal::BytePairs& Tokenizer::pairs() const {
  if (pairs_) return *pairs_;
  throw UsageError("LS-EMPTY-HANDLE", "a Tokenizer that holds no vocabulary was used",
                   "assign one first: data::tokenizer(\"tokenizer.json\")");
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const { return pairs().encode(text); }

std::string Tokenizer::decode(std::span<const int64_t> tokens) const {
  std::string result;
  for (const int64_t token : tokens) {
    const auto found = pairs().bytes.find(token);
    if (found == pairs().bytes.end()) {
      throw UsageError("LS-OPTION", fmt::format("{} was to be decoded, and is no token of this vocabulary", token),
                       "decode what encode() of the same tokenizer gave");
    }
    result += found->second;
  }
  return result;
}

int64_t Tokenizer::vocabulary_size() const { return pairs().size; }

std::optional<int64_t> Tokenizer::token(std::string_view content) const {
  const auto found = pairs().tokens.find(std::string(content));
  if (found == pairs().tokens.end()) return std::nullopt;
  return found->second;
}

Tokenizer tokenizer(const std::string& path) {
  return Tokenizer(internal::parse_tokenizer(path, internal::bytes_of_file(path, kLargestFile)));
}

}  // namespace lockstep::data
