// Byte-pair tokens: those that Hugging Face's library gives, for texts that are hard to split.
#include "lockstep/data/sources/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/data/formats/text/byte_pairs.h"
#include "lockstep/data/formats/text/unicode_classes.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::expect_error;
using Tokens = std::vector<int64_t>;

// Token b is the byte b, token 256 + i the i-th of these merges, as they are spelled, and the last one the end of a
// text.
const std::pair<const char*, const char*> kMerges[] = {
    {"\xc4\xa0", "\xc4\xa0"},
    {"\xc4\xa0", "t"},
    {"s", "t"},
    {"\xc4\xa0", "a"},
    {"r", "e"},
    {"h", "e"},
    {"o", "n"},
    {"i", "n"},
    {"\xc4\xa0\xc4\xa0", "\xc4\xa0\xc4\xa0"},
    {"o", "r"},
    {"\xc4\xa0", "w"},
    {"\xc4\xa0", "c"},
    {"\xc4\xa0", "1"},
    {"e", "r"},
    {"\xc4\xa0t", "he"},
    {"a", "t"},
    {"e", "s"},
    {"c", "h"},
    {"i", "t"},
    {"n", "d"},
    {"\xc4\xa0"
     "1",
     "2"},
    {"c", "k"},
    {"e", "p"},
    {"\xc2\xb1", "\xc3\xa4"},
    {"\xc2\xba", "\xc2\xac"},
    {"\xc3\xa6", "\xc4\xbf"},
    {"\xc4\xa0", "\xc3\xa6\xc4\xbf"},
    {"\xc2\xb1\xc3\xa4", "\xc2\xba\xc2\xac"},
    {"\xc4\xa0\xc3\xa6\xc4\xbf", "\xc2\xb1\xc3\xa4\xc2\xba\xc2\xac"},
    {"l", "l"},
    {"\xc4\xa0", "`"},
    {"\xc4\xa0", "n"},
    {"\xc4\xa0", "d"},
    {"\xc4\xa0"
     "a",
     "nd"},
    {"\xc4\xa0", "b"},
    {"\xc4\xa0", "f"},
    {"\xc4\xa0", "s"},
    {"\xc4\xa0", "on"},
    {"st", "ep"},
    {"t", "s"},
    {"l", "o"},
    {"\xc4\xa0", "o"},
    {"\xc4\xa0", "2"},
    {"l", "d"},
    {"l", "i"},
    {"ck", "step"},
    {"a", "s"},
    {"\xc4\xa0n", "a"},
    {"r", "i"},
    {"h", "at"},
    {"\xc4\xa0", "in"},
    {"\xc4\xa0\xc4\xa0\xc4\xa0\xc4\xa0", "\xc4\xa0\xc4\xa0\xc4\xa0\xc4\xa0"},
    {"or", "ch"},
    {"\xc4\xa0w", "e"},
    {"v", "e"},
    {"\xc4\xa0", "it"},
    {"\xc4\xa0"
     "c",
     "a"},
    {"a", "n"},
    {"e", "st"},
    {"r", "a"},
    {"r", "o"},
    {"\xc4\xa0", "m"},
    {"\xc4\xa0\xc4\xa0", "\xc4\xa0"},
    {"0", "2"}};

/// What `tokenizers` 0.23.3 gives for the same vocabulary.
struct Case {
  const char* text;
  Tokens tokens;
};
const Case kCases[] = {
    {"", {}},
    {"Each replica's step, in 2 parts.",
     {69, 97, 273, 32, 260, 112, 300, 99, 97, 39, 115, 32, 294, 44, 306, 298, 32, 112, 97, 114, 295, 46}},
    {"don't we'll  they're\n\n  12 123abc",
     {100, 262, 39, 116, 309, 39, 285, 32, 270, 121, 39, 260, 10, 10, 32, 276, 276, 51, 97, 98, 99}},
    {"  leading and trailing   ", {32, 32, 108, 101, 97, 100, 263, 103, 289, 257, 315, 105, 108, 263, 103, 318}},
    {"na\xc3\xafve caf\xc3\xa9 Gr\xc3\xb6\xc3\x9f"
     "e \xe6\x9d\xb1\xe4\xba\xac \xe3\x82\xbf\xe3\x83\xaf\xe3\x83\xbc",
     {110, 97,  195, 175, 310, 312, 102, 195, 169, 32,  71,  114, 195, 182,
      195, 159, 101, 284, 32,  227, 130, 191, 227, 131, 175, 227, 131, 188}},
    {" \t\n x", {32, 9, 10, 32, 120}},
    {"a<|endoftext|>b <|endoftext|>", {97, 320, 98, 32, 320}},
    {"\xc2\xbd\xc2\xb2\xe2\x85\xa7\xd9\xa3 \xc7\x85 \xc2\xaa\xc2\xba",
     {194, 189, 194, 178, 226, 133, 167, 217, 163, 32, 199, 133, 32, 194, 170, 194, 186}},
    {"emoji \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 ok\xe3\x80\x80\xe3\x80\x80wide",
     {101, 109, 111, 106, 105, 32,  240, 159, 145, 169, 226, 128, 141, 240, 159, 145, 169, 226,
      128, 141, 240, 159, 145, 167, 297, 107, 227, 128, 128, 227, 128, 128, 119, 105, 100, 101}},
    {"'S 's'''ll", {39, 83, 32, 39, 115, 39, 39, 39, 285}},
    {"aaaaaaaaaaaa the the then thethe",
     {97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 270, 270, 270, 110, 270, 116, 261}},
    {"\xc2\xa0nbsp\xe2\x80\xa8line", {194, 160, 110, 98, 115, 112, 226, 128, 168, 108, 263, 101}}};
/// The same with "add_prefix_space".
const Case kWithSpace[] = {
    {"Each replica's step, in 2 parts.",
     {32, 69, 97, 273, 32, 260, 112, 300, 99, 97, 39, 115, 32, 294, 44, 306, 298, 32, 112, 97, 114, 295, 46}},
    {"don't we'll  they're\n\n  12 123abc",
     {288, 262, 39, 116, 309, 39, 285, 32, 270, 121, 39, 260, 10, 10, 32, 276, 276, 51, 97, 98, 99}},
    {"  leading and trailing   ", {32, 32, 108, 101, 97, 100, 263, 103, 289, 257, 315, 105, 108, 263, 103, 318}},
    {"na\xc3\xafve caf\xc3\xa9 Gr\xc3\xb6\xc3\x9f"
     "e \xe6\x9d\xb1\xe4\xba\xac \xe3\x82\xbf\xe3\x83\xaf\xe3\x83\xbc",
     {303, 195, 175, 310, 312, 102, 195, 169, 32,  71,  114, 195, 182, 195,
      159, 101, 284, 32,  227, 130, 191, 227, 131, 175, 227, 131, 188}},
    {" \t\n x", {32, 9, 10, 32, 120}},
    {"a<|endoftext|>b <|endoftext|>", {259, 320, 290, 32, 320}}};

json file_of(bool prefix_space = false) {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary[internal::spelled({&c, 1})] = byte;
  }
  json merges = json::array();
  int token = 256;
  for (const auto& [left, right] : kMerges) {
    merges.push_back(std::string(left) + " " + right);
    vocabulary[std::string(left) + right] = token++;
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", true}};
  const json end = {{"id", token},     {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false},        {"special", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

class TokenizerFile : public testing::ScratchFolder {
 protected:
  data::Tokenizer read(const json& file) const { return data::tokenizer(write("tokenizer.json", file.dump())); }
  void expect_refused(const json& file, std::string_view value,
                      const testing::Where& where = testing::Where::current()) const {
    const std::string name = quoted("tokenizer.json");
    expect_error<DataError>([&] { read(file); }, "LS-DATA-FILE", {name, value}, where);
  }
};

TEST_F(TokenizerFile, GivesTheTokensOfHuggingFacesLibrary) {
  const data::Tokenizer tokenizer = read(file_of());
  for (const Case& one : kCases) {
    EXPECT_EQ(tokenizer.encode(one.text), one.tokens) << one.text;
    EXPECT_EQ(tokenizer.decode(one.tokens), one.text);
  }
  const data::Tokenizer with_space = read(file_of(true));
  for (const Case& one : kWithSpace) EXPECT_EQ(with_space.encode(one.text), one.tokens) << one.text;
  EXPECT_EQ(tokenizer.vocabulary_size(), 321);
  EXPECT_EQ(tokenizer.token("<|endoftext|>"), 320);
  EXPECT_EQ(tokenizer.token("x"), 'x');
  EXPECT_EQ(tokenizer.token("nothing"), std::nullopt);
  expect_error<UsageError>([&] { tokenizer.decode(Tokens{321}); }, "LS-OPTION", {"321"});
  expect_error<UsageError>([] { data::Tokenizer().encode("x"); }, "LS-EMPTY-HANDLE");
}

TEST_F(TokenizerFile, GivesAnyBytesBack) {
  const data::Tokenizer tokenizer = read(file_of());
  std::string bytes;
  uint32_t state = 7;
  for (int i = 0; i < 20000; ++i) bytes += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
}

TEST_F(TokenizerFile, TakesOneLongWordInReasonableTime) {
  json file = file_of();
  file["model"]["merges"] = json::array({"a a", "aa aa"});
  file["model"]["vocab"]["aa"] = 1000;
  file["model"]["vocab"]["aaaa"] = 1001;
  EXPECT_EQ(read(file).encode(std::string(400003, 'a')).size(), 100002u);
}

TEST_F(TokenizerFile, TakesMergesAsListsAndTheLongestAddedText) {
  json file = file_of();
  json merges = json::array();
  for (const auto& [left, right] : kMerges) merges.push_back(json::array({left, right}));
  file["model"]["merges"] = merges;
  for (const auto& [content, token, normalized] :
       {std::tuple{"<|end", 400, false}, {"the", 401, true}, {"<|", 402, true}}) {
    file["added_tokens"].push_back({{"id", token}, {"content", content}, {"normalized", normalized}});
  }
  const data::Tokenizer tokenizer = read(file);
  EXPECT_EQ(tokenizer.encode(kCases[1].text), kCases[1].tokens);
  EXPECT_EQ(tokenizer.encode("<|endoftext|><|endo<|x"), (Tokens{320, 400, 'o', 402, 'x'}));
  EXPECT_EQ(tokenizer.encode("bthex"), (Tokens{'b', 401, 'x'}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 403);
}

TEST_F(TokenizerFile, OfAnotherKindIsRefusedWithTheReason) {
  const auto changed = [](const char* pointer, const json& value) {
    json file = file_of();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  expect_refused(changed("/normalizer", {{"type", "NFC"}}), "normalizer");
  expect_refused(changed("/truncation", {{"max_length", 5}}), "truncation");
  expect_refused(changed("/pre_tokenizer", {{"type", "Whitespace"}}), "'Whitespace'");
  expect_refused(changed("/pre_tokenizer", nullptr), "pre_tokenizer");
  expect_refused(changed("/post_processor", {{"type", "TemplateProcessing"}}), "'TemplateProcessing'");
  expect_refused(changed("/model/type", "WordPiece"), "'WordPiece'");
  expect_refused(changed("/model/dropout", 0.1), "dropout");
  expect_refused(changed("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix");
  expect_refused(changed("/model/ignore_merges", true), "ignore_merges");
  expect_refused(changed("/model/other", 1), "'other'");
  expect_refused(changed("/added_tokens/0/lstrip", true), "lstrip");
  json file = file_of();
  file["model"]["vocab"].erase("a");
  expect_refused(file, "byte 97");
}

TEST_F(TokenizerFile, ThatIsDamagedIsNamed) {
  write("tokenizer.json", file_of().dump().substr(0, 3000));
  expect_error<DataError>([&] { data::tokenizer(path("tokenizer.json")); }, "LS-DATA-FILE", {quoted("tokenizer.json")});
  expect_error<DataError>([&] { data::tokenizer(path("nowhere")); }, "LS-DATA-FILE", {quoted("nowhere")});
  const auto changed = [](const char* pointer, const json& value) {
    json file = file_of();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  expect_refused(json::array(), "object");
  expect_refused(changed("/model", 1), "model");
  expect_refused(changed("/model/vocab", 1), "vocab");
  expect_refused(changed("/model/vocab/a", -1), "-1");
  expect_refused(changed("/model/vocab/a", "x"), "token");
  expect_refused(changed("/model/vocab/a", 98), "98");
  expect_refused(changed("/model/merges/0", "a"), "merges");
  expect_refused(changed("/model/merges/0", "q zz"), "'zz'");
  expect_refused(changed("/model/merges/0", "q z"), "'qz'");
  expect_refused(changed("/added_tokens/0/id", 5), "token 5");
  expect_refused(changed("/added_tokens/0/content", ""), "empty");
}

TEST(UnicodeClasses, AreThoseOfTheStandard) {
  using internal::CharacterClass;
  using internal::class_of;
  for (const uint32_t letter : {0x41u, 0x7au, 0xaau, 0xe9u, 0x1c5u, 0x6771u, 0x30bfu, 0x1d400u}) {
    EXPECT_EQ(class_of(letter), CharacterClass::kLetter) << letter;
  }
  for (const uint32_t number : {0x30u, 0xb2u, 0xbdu, 0x663u, 0x2167u, 0x1d7ceu})
    EXPECT_EQ(class_of(number), CharacterClass::kNumber) << number;
  for (const uint32_t space : {0x20u, 0x9u, 0xa0u, 0x85u, 0x2028u, 0x3000u})
    EXPECT_EQ(class_of(space), CharacterClass::kSpace) << space;
  for (const uint32_t other : {0x0u, 0x21u, 0x200du, 0x1f469u, 0x301u, 0x10ffffu})
    EXPECT_EQ(class_of(other), CharacterClass::kOther) << other;
  EXPECT_EQ(internal::character_at("\xe6\x9d\xb1", 0).code, 0x6771u);
  for (const char* wrong :
       {"\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x9d", "\xff", "\xe0\x80\x80"}) {
    EXPECT_EQ(internal::character_at(wrong, 0).code, internal::Character::kNone);
    EXPECT_EQ(internal::character_at(wrong, 0).bytes, 1u);
  }
}

}  // namespace
}  // namespace lockstep
