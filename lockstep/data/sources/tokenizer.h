// Byte-pair tokens by a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

namespace internal::inline data {
class BytePairs;
}  // namespace internal::data

namespace data {

/// From text to tokens and back. Copies refer to the same vocabulary; any number of threads may use it. A
/// default-constructed one is empty: its members throw a UsageError.
class Tokenizer {
 public:
  Tokenizer() = default;
  explicit Tokenizer(std::shared_ptr<const internal::BytePairs> pairs);

  /// The tokens of a text, which may be any bytes; decode() gives it back, where the file does not ask for a space
  /// before each text. Takes time that grows with n log n.
  std::vector<int64_t> encode(std::string_view text) const;
  /// The bytes of these tokens. Throws a UsageError for a number that is no token.
  std::string decode(std::span<const int64_t> tokens) const;
  /// One more than the largest token.
  int64_t vocabulary_size() const;
  /// The token of an added text, such as "<|endoftext|>", or of an entry of the vocabulary, as the file spells it.
  std::optional<int64_t> token(std::string_view content) const;

 private:
  const internal::BytePairs& pairs() const;
  std::shared_ptr<const internal::BytePairs> pairs_;
};

/// Reads a tokenizer.json of byte-level BPE, GPT-2's kind: model BPE, pre-tokenizer ByteLevel, and added tokens. Throws
/// a DataError that names the file and the reason for one that is damaged or asks for anything else, so that no text
/// gets other tokens than Hugging Face's library would give it. docs/data-formats.md says which parts of the format
/// there are.
Tokenizer tokenizer(const std::string& path);

}  // namespace data
}  // namespace lockstep
