#include "lockstep/data/formats/text/byte_pairs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>

#include "lockstep/data/formats/text/unicode_classes.h"

namespace lockstep::internal::inline data {

namespace {

CharacterClass class_at(std::string_view text, std::size_t at, std::size_t& bytes) {
  const Character character = character_at(text, at);
  bytes = character.bytes;
  return character.code == Character::kNone ? CharacterClass::kOther : class_of(character.code);
}

/// Where the characters of this class that begin at `at` end, and where the last of them begins.
struct Run {
  std::size_t last;
  std::size_t end;
};
Run run_of(std::string_view text, std::size_t at, CharacterClass wanted) {
  Run run{at, at};
  std::size_t bytes = 0;
  while (run.end < text.size() && class_at(text, run.end, bytes) == wanted) {
    run.last = run.end;
    run.end += bytes;
  }
  return run;
}

/// The character that stands for each byte: itself where it can be printed, otherwise those from U+0100 on in turn.
std::array<uint32_t, 256> characters_of_bytes() {
  std::array<uint32_t, 256> result{};
  uint32_t other = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    result[byte] = prints ? byte : other++;
  }
  return result;
}

const std::array<uint32_t, 256>& characters() {
  static const std::array<uint32_t, 256> all = characters_of_bytes();
  return all;
}

/// Splits at the added texts: calls `on_token` for each of them, and `on_text` for what stands between.
template <class OnToken, class OnText>
void split_at(const FixedTexts& texts, std::string_view text, const OnToken& on_token, const OnText& on_text) {
  std::size_t begin = 0;
  std::size_t at = 0;
  while (!texts.empty() && at < text.size()) {
    const FixedTexts::Found found = texts.longest_at(text, at);
    if (found.length == 0) {
      ++at;
      continue;
    }
    if (begin < at) on_text(text.substr(begin, at - begin));
    on_token(found.token);
    begin = at += found.length;
  }
  if (begin < text.size()) on_text(text.substr(begin));
}

}  // namespace

std::size_t first_word(std::string_view text) {
  if (text.empty()) return 0;
  for (const char* suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(suffix)) return std::string_view(suffix).size();
  }
  std::size_t bytes = 0;
  const std::size_t begin = text[0] == ' ' ? 1 : 0;
  if (begin < text.size()) {
    const CharacterClass kind = class_at(text, begin, bytes);
    if (kind != CharacterClass::kSpace) return run_of(text, begin, kind).end;
  }
  // Spaces; before a word the last of them is left to it.
  const Run run = run_of(text, 0, CharacterClass::kSpace);
  return run.end == text.size() || run.last == 0 ? run.end : run.last;
}

std::string spelled(std::string_view bytes) {
  std::string result;
  for (const char c : bytes) {
    const uint32_t code = characters()[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      result += static_cast<char>(code);
    } else {
      result += static_cast<char>(0xc0 | code >> 6);
      result += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return result;
}

std::optional<std::string> unspelled(std::string_view entry) {
  static const std::unordered_map<uint32_t, char> bytes = [] {
    std::unordered_map<uint32_t, char> result;
    for (std::size_t byte = 0; byte < 256; ++byte) result[characters()[byte]] = static_cast<char>(byte);
    return result;
  }();
  std::string result;
  for (std::size_t at = 0; at < entry.size();) {
    const Character character = character_at(entry, at);
    const auto found = bytes.find(character.code);
    if (found == bytes.end()) return std::nullopt;
    result += found->second;
    at += character.bytes;
  }
  return result;
}

void FixedTexts::add(std::string_view text, int64_t token) {
  uint64_t node = 0;
  for (const char c : text) {
    const auto [next, is_new] = next_.try_emplace(node << 8 | static_cast<unsigned char>(c), nodes_);
    if (is_new) ++nodes_;
    node = next->second;
  }
  tokens_[node] = token;
}

FixedTexts::Found FixedTexts::longest_at(std::string_view text, std::size_t at) const {
  Found found;
  uint64_t node = 0;
  for (std::size_t end = at; end < text.size();) {
    const auto next = next_.find(node << 8 | static_cast<unsigned char>(text[end++]));
    if (next == next_.end()) break;
    node = next->second;
    const auto token = tokens_.find(node);
    if (token != tokens_.end()) found = {token->second, end - at};
  }
  return found;
}

std::vector<int64_t> BytePairs::encode(std::string_view text) const {
  std::vector<int64_t> result;
  const auto add = [&result](int64_t token) { result.push_back(token); };
  const auto encode_text = [&](std::string_view part) { encode_part(part, result); };
  split_at(first_texts, text, add, [&](std::string_view part) { split_at(second_texts, part, add, encode_text); });
  return result;
}

/// A text without added texts in it.
void BytePairs::encode_part(std::string_view text, std::vector<int64_t>& result) const {
  std::string with_space;
  if (prefix_space && !text.starts_with(' ')) {
    with_space = " " + std::string(text);
    text = with_space;
  }
  while (!text.empty()) {
    const std::size_t length = splits ? first_word(text) : text.size();
    encode_word(text.substr(0, length), result);
    text.remove_prefix(length);
  }
}

/// Joins neighbours, always the pair of the lowest rank, and of these the first one, until no pair is left.
void BytePairs::encode_word(std::string_view word, std::vector<int64_t>& result) const {
  struct Symbol {
    int64_t token;  // -1 once it is joined to the one before it
    std::size_t previous;
    std::size_t next;
  };
  constexpr std::size_t kNone = SIZE_MAX;
  std::vector<Symbol> symbols(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) {
    symbols[i] = {byte_tokens[static_cast<unsigned char>(word[i])], i == 0 ? kNone : i - 1,
                  i + 1 == word.size() ? kNone : i + 1};
  }
  struct Candidate {
    int64_t rank;
    std::size_t left;
    uint64_t pair;
    int64_t token;
    bool operator>(const Candidate& other) const { return std::pair(rank, left) > std::pair(other.rank, other.left); }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto offer = [&](std::size_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const uint64_t both = pair(symbols[left].token, symbols[symbols[left].next].token);
    const auto merge = merges.find(both);
    if (merge != merges.end()) candidates.push({merge->second.rank, left, both, merge->second.token});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) offer(i);
  while (!candidates.empty()) {
    const Candidate candidate = candidates.top();
    candidates.pop();
    Symbol& left = symbols[candidate.left];
    if (left.token < 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    if (pair(left.token, right.token) != candidate.pair) continue;  // one of them has been joined to another meanwhile
    left.token = candidate.token;
    right.token = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = candidate.left;
    offer(left.previous);
    offer(candidate.left);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.token >= 0) result.push_back(symbol.token);
  }
}

}  // namespace lockstep::internal::data
