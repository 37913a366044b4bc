// The strict reader of safetensors' headers, and of the manifest.
#include "lockstep/checkpoint/formats/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/checkpoint/folder/manifest.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using internal::TensorFileHeader;
using testing::expect_error;

TensorFileHeader decoded(const std::string& json, uint64_t bytes) {
  return internal::decode_header(json, bytes, "the file");
}

TEST(Safetensors, AHeaderIsWhatWasWritten) {
  TensorFileHeader header{.tensors = {{"b", "F64", {2, 3}}, {"a\n\"x\"", "U8", {}}, {"none", "F32", {0, 7}}},
                          .metadata = {{"format", "pt"}}};
  internal::layout(header);
  const std::string text = internal::encode_header(header);
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(decoded(text.substr(8), 49), header);
}

TEST(Safetensors, WhatIsNotStrictlyAFileIsRefused) {
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(decoded(one, 8).tensors.size(), 1u);
  EXPECT_EQ(decoded(one + "   ", 8).tensors.size(), 1u);
  EXPECT_EQ(decoded("{}", 0).tensors.size(), 0u);
  for (
      const auto& [json, bytes] : std::initializer_list<std::pair<std::string, uint64_t>>{
          {one, 7},
          {one, 9},
          {"", 0},
          {" {}", 0},
          {"[]", 0},
          {"{", 0},
          {one + "x", 8},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12},
          {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8},
          {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8},
          {R"({"a":{"dtype":"F3","shape":[2],"data_offsets":[0,8]}})", 8},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8},
          {R"({"a":{"dtype":"F32","shape":[2]}})", 8},
          {R"({"a":3})", 8},
          {R"({"__metadata__":{"a":3}})", 0},
          {R"({"__metadata__":[]})", 0},
          {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
          {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0},
          {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
           6},
          {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
           9},
          {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
           8},
          {"{\"a\":" + std::string(10000, '[') + std::string(10000, ']') + "}", 0},
          {std::string("{\"\xff\":1}"), 0},
      }) {
    expect_error<DataError>([&] { decoded(json, bytes); }, "LS-CHECKPOINT-DAMAGED");
  }
}

TEST(Safetensors, BytesBehindTheHeadersObjectAreRefusedWithTheirPlace) {
  const std::string one = R"({"a}\"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(decoded(one + "   ", 8).tensors.size(), 1u);
  for (const std::string& behind : {std::string(1, '\0'), std::string("\0{}", 3), std::string("\n"), std::string("{}"),
                                    std::string("\t"), std::string("x"), one, std::string("\xef\xbb\xbf")}) {
    const std::string place = "at byte " + std::to_string(8 + one.size() + 2) + ",";
    expect_error<DataError>([&] { decoded(one + "  " + behind, 8); }, "LS-CHECKPOINT-DAMAGED", {"the file", place});
  }
  // Also within the object a zero ends nothing.
  expect_error<DataError>([&] { decoded("{" + std::string(1, '\0') + "}", 0); }, "LS-CHECKPOINT-DAMAGED");
}

TEST(Safetensors, ALengthBeyondTheFileIsRefused) {
  const auto length = [](uint64_t claimed, uint64_t file) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(claimed >> (8 * i));
    return internal::header_length(bytes, file, "the file");
  };
  EXPECT_EQ(length(2, 10), 2u);
  for (const auto& [claimed, file] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
           {3, 10}, {0, 7}, {0, 0}, {std::numeric_limits<uint64_t>::max(), 100}, {200'000'000, 1'000'000'000}}) {
    expect_error<DataError>([&] { length(claimed, file); }, "LS-CHECKPOINT-DAMAGED");
  }
}

internal::Manifest some_manifest() {
  internal::Manifest manifest;
  manifest.run = {.library = "1",
                  .platform = "p \"q\"",
                  .fingerprint = "f",
                  .strategy = "S",
                  .replicas = 2,
                  .workers = 2,
                  .step = 7,
                  .sequence = 3};
  manifest.run.numbers = {{.kind = "number", .name = "step", .integers = {7}},
                          {.kind = "cursor", .name = "train", .integers = {1, -2, std::numeric_limits<int64_t>::min()}},
                          {.kind = "learning-rate", .name = "a", .real = 0.1},
                          {.kind = "learning-rate", .name = "b", .real = -std::numeric_limits<double>::infinity()},
                          {.kind = "learning-rate", .name = "c", .real = 5e-324}};
  manifest.run.data = {{"train", R"({"epoch":1})"}};
  manifest.run.values = {{"best", R"({"a":[1,2.5,null]})"}, {"none", "null"}};
  manifest.files = {{"weights.safetensors", 100, "00"}};
  manifest.tensors = {{"mirrored", "w", -1, 0, "w", "Float", {"ab", "ef"}},
                      {"on-read", "m", 0, 0, "m@0", "Float", {"ce"}},
                      {"on-read", "m", 1, 0, "m@1", "Float", {"cd"}}};
  return manifest;
}

TEST(Manifest, IsWhatWasWritten) {
  const std::string text = internal::encode_manifest(some_manifest());
  EXPECT_EQ(internal::decode_manifest(text, "m"), some_manifest());
  EXPECT_EQ(internal::decode_manifest(internal::encode_manifest({}), "m"), internal::Manifest());
}

TEST(Manifest, AnotherTextIsRefused) {
  const std::string text = internal::encode_manifest(some_manifest());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    expect_error<DataError>([&] { internal::decode_manifest(damaged, "m"); }, "LS-CHECKPOINT-DAMAGED");
  }
  auto escaping = some_manifest();
  for (const char* name : {"../x", "/etc/passwd", "", ".", "..", "a/b"}) {
    escaping.files[0].name = name;
    expect_error<DataError>([&] { internal::decode_manifest(internal::encode_manifest(escaping), "m"); },
                            "LS-CHECKPOINT-DAMAGED");
  }
}

TEST(Manifest, ThatLacksAReplicasValueIsRefused) {
  const auto refused = [](std::vector<int64_t> replicas) {
    internal::Manifest manifest = some_manifest();
    manifest.tensors.resize(1);
    for (const int64_t r : replicas) manifest.tensors.push_back({"on-read", "m", r, 0, "m", "Float", {"cd"}});
    try {
      internal::decode_manifest(internal::encode_manifest(manifest), "m");
      return false;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("nor one for each of 2 replicas"), std::string::npos) << error.what();
      return true;
    }
  };
  for (const std::vector<int64_t>& right : {std::vector<int64_t>{}, {-1}, {0, 1}}) EXPECT_FALSE(refused(right));
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{0}, {1}, {1, 0}, {0, 0}, {0, 1, 2}, {-1, -1}, {-1, 0}, {0, -1}, {-2}, {0, 1, -1}}) {
    EXPECT_TRUE(refused(wrong)) << ::testing::PrintToString(wrong);
  }
}

RC_GTEST_PROP(Safetensors, AnyTextIsAHeaderOrAnError, (const std::string& text, uint16_t bytes)) {
  try {
    decoded("{" + text, bytes);
  } catch (const DataError&) {
  }
}

}  // namespace
}  // namespace lockstep
