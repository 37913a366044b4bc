// Any bytes as a tokenizer.json, and as a text that becomes tokens.
#include "lockstep/data/formats/text/byte_pairs.h"
#include "tests/fuzz/fuzz.h"

namespace {

using lockstep::internal::BytePairs;

/// All bytes, some merges and an added text.
BytePairs made() {
  BytePairs pairs;
  const auto add = [&](const std::string& bytes) {
    pairs.tokens[lockstep::internal::spelled(bytes)] = pairs.size;
    pairs.bytes[pairs.size] = bytes;
    return pairs.size++;
  };
  for (int byte = 0; byte < 256; ++byte) pairs.byte_tokens.push_back(add(std::string(1, static_cast<char>(byte))));
  int64_t rank = 0;
  const auto merge = [&](int64_t left, int64_t right) {
    const int64_t token = add(pairs.bytes[left] + pairs.bytes[right]);
    pairs.merges[BytePairs::pair(left, right)] = {rank++, token};
    return token;
  };
  const int64_t two = merge('a', 'a');
  merge(two, 'a');
  merge(merge('a', 'b'), two);
  merge(merge(' ', 'a'), 'b');
  pairs.first_texts.add("<a>", add("<a>"));
  pairs.second_texts.add("<a", add("<a"));
  return pairs;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  static const BytePairs pairs = made();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto expect_all = [&](const BytePairs& by) {
    std::string again;
    for (const int64_t token : by.encode(text)) again += by.bytes.at(token);
    fuzz::check(again == text || (by.prefix_space && again.size() >= text.size()),
                "the tokens of a text hold all of it");
  };
  expect_all(pairs);
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = internal::first_word(std::string_view(text).substr(at));
    fuzz::check(length >= 1 && length <= text.size() - at, "a word has bytes, all of them in the text");
    at += length;
  }
  fuzz::is_value_or_data_error([&] { expect_all(*internal::parse_tokenizer("input", text)); });
  return 0;
}
