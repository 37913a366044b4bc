// Byte-level byte-pair encoding: vocabulary, merges, and how a text is split before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::internal::inline data {

/// The first word of a text, by the pattern that GPT-2 splits texts with:
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A byte that is no part of UTF-8 counts as no letter, number or space. Gives its length, at least 1 where there is
/// text.
std::size_t first_word(std::string_view text);

/// Each byte as one printable character, as vocabularies of byte-level BPE spell it: in UTF-8.
std::string spelled(std::string_view bytes);
/// The bytes that a vocabulary's entry stands for; nothing where it has a character that stands for no byte.
std::optional<std::string> unspelled(std::string_view entry);

/// Texts that are found in another text: at each place the longest one.
class FixedTexts {
 public:
  void add(std::string_view text, int64_t token);
  /// The token and length of the longest text that begins at a place; a length of 0 where there is none.
  struct Found {
    int64_t token = -1;
    std::size_t length = 0;
  };
  Found longest_at(std::string_view text, std::size_t at) const;
  bool empty() const { return next_.empty(); }

 private:
  std::unordered_map<uint64_t, uint64_t> next_;  // (node, byte) to node; the root is 0
  std::unordered_map<uint64_t, int64_t> tokens_;
  uint64_t nodes_ = 1;
};

/// A vocabulary and all that a text needs to become tokens. Constant once it is made.
class BytePairs {
 public:
  struct Merge {
    int64_t rank = 0;
    int64_t token = 0;
  };
  static uint64_t pair(int64_t left, int64_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
  }

  std::vector<int64_t> encode(std::string_view text) const;

  // Filled by who reads the file. Tokens are from 0 to below 2^31.
  std::unordered_map<std::string, int64_t> tokens;  // by spelling, of the vocabulary and of added texts
  std::unordered_map<int64_t, std::string> bytes;   // what each token stands for
  std::vector<int64_t> byte_tokens;                 // of each byte
  std::unordered_map<uint64_t, Merge> merges;       // by pair()
  FixedTexts first_texts;                           // added texts that are looked for first,
  FixedTexts second_texts;                          // and then
  bool prefix_space = false;                        // a text that does not begin with a space gets one
  bool splits = true;                               // by first_word()
  int64_t size = 0;                                 // one more than the largest token

 private:
  void encode_part(std::string_view text, std::vector<int64_t>& result) const;
  void encode_word(std::string_view word, std::vector<int64_t>& result) const;
};

/// Reads the text of a tokenizer.json. `name` is what messages call it. Throws a DataError.
std::shared_ptr<const BytePairs> parse_tokenizer(const std::string& name, std::string_view json);

}  // namespace lockstep::internal::data
