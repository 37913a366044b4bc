// CSV, CIFAR and token files as data sets.
#include "lockstep/data/files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "tests/support/gzip.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;

std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}
std::vector<int64_t> ints(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

class Csv : public testing::ScratchFolder {
 protected:
  Batch all(const std::string& text, const data::CsvOptions& options = {}) const {
    return data::csv(write("a.csv", text), options).read_all();
  }
  void expect_damaged(const std::string& text, std::initializer_list<std::string_view> values,
                      const data::CsvOptions& options = {},
                      const testing::Where& where = testing::Where::current()) const {
    expect_error<DataError>([&] { all(text, options); }, "LS-DATA-FILE", values, where);
    const std::string name = quoted("a.csv");
    expect_error<DataError>([&] { all(text, options); }, "LS-DATA-FILE", {name}, where);
  }
};

TEST_F(Csv, RowsAreSamplesAndTheLastColumnTheTarget) {
  const Batch batch = all("a,b,class\n1,2.5,0\n-3e2,+.5, 7 \n");
  EXPECT_EQ(batch.input.sizes(), (Ints{2, 2}));
  EXPECT_EQ(batch.input.scalar_type(), at::kFloat);
  EXPECT_EQ(floats(batch.input), (Floats{1, 2.5, -300, 0.5}));
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);
  EXPECT_EQ(batch.target.sizes(), (Ints{2}));
  EXPECT_EQ(ints(batch.target), (Ints{0, 7}));
}

TEST_F(Csv, ColumnsAreChosenByNameOrNumber) {
  const std::string text = "a,b,c\n1,2,3\n4,5,6\n";
  EXPECT_EQ(floats(all(text, {.targets = {"a"}}).input), (Floats{2, 3, 5, 6}));
  EXPECT_EQ(floats(all(text, {.targets = {"a"}, .inputs = {"c"}}).input), (Floats{3, 6}));
  const Batch two = all(text, {.targets = {"2", "a"}, .target = data::CsvTarget::kNumber});
  EXPECT_EQ(two.target.sizes(), (Ints{2, 2}));
  EXPECT_EQ(two.target.scalar_type(), at::kFloat);
  EXPECT_EQ(floats(two.target), (Floats{3, 1, 6, 4}));
  EXPECT_EQ(all("1;2\n3;4", {.header = false, .separator = ';'}).target.size(0), 2);
  expect_error<UsageError>([&] { all(text, {.targets = {"d"}}); }, "LS-OPTION", {"'d'", ".targets"});
  expect_error<UsageError>([&] { all(text, {.inputs = {"3"}}); }, "LS-OPTION", {"'3'", ".inputs"});
  expect_error<UsageError>([&] { all("a\n1\n"); }, "LS-OPTION");
  expect_error<UsageError>([&] { all(text, {.separator = '"'}); }, "LS-OPTION", {".separator"});
}

TEST_F(Csv, QuotesHoldSeparatorsEndsOfLinesAndQuotes) {
  const Batch batch =
      all("\xef\xbb\xbf\"a\"\"1\",\"b,\nc\"\r\n\r\n\"1\",\"2\"\r\n3,4", {.targets = {"b,\nc"}, .inputs = {"a\"1"}});
  EXPECT_EQ(floats(batch.input), (Floats{1, 3}));
  EXPECT_EQ(ints(batch.target), (Ints{2, 4}));
  expect_damaged("a,b\n1,2\n3,4\"5\n", {"line 3", "column 2"});
  expect_damaged("a,b\n1,2\n\"3\"x,4\n", {"line 3", "column 1"});
  expect_damaged("a,b\n1,2\n3,\"4\n\n", {"line 3", "column 2"});
  expect_damaged("\"a\n\nb\",c\n1,x\n", {"line 4", "column 2"});
}

TEST_F(Csv, WhatIsNoNumberIsNamedWithItsLineAndColumn) {
  expect_damaged("a,b\n1,2\n\n3,x\n", {"line 4", "column 2", "'x'", "'b'"});
  expect_damaged("a,b\n1x,2\n", {"line 2", "column 1", "'1x'"});
  expect_damaged("a,b\n1,2.5\n", {"line 2", "column 2", "'2.5'"});
  expect_damaged("a,b\n1e39,2\n", {"line 2", "column 1", "'1e39'"});
  expect_damaged("a,b\n,2\n", {"line 2", "column 1"});
  expect_damaged("a,b\n1,\n", {"line 2", "column 2"}, {.missing = 0.0f});
  expect_damaged("a,b\n1,99999999999999999999\n", {"line 2", "column 2"});
  expect_damaged("a,b\n1,2\n1,2,3\n", {"line 3", "3 fields"});
  expect_damaged("a,b\n1,2\n1\n", {"line 3", "1 field"});
  expect_damaged("", {"no rows"});
  EXPECT_EQ(floats(all("a,b\n ,2\n", {.missing = -1.0f}).input), (Floats{-1}));
  EXPECT_EQ(all("a,b\n").input.sizes(), (Ints{0, 1}));
  expect_error<DataError>([&] { data::csv(path("nowhere")); }, "LS-DATA-FILE", {quoted("nowhere")});
}

TEST_F(Csv, LargeFilesAreReadWhole) {
  std::string text = "x,y\n";
  for (int i = 0; i < 40000; ++i) text += std::to_string(i) + ",\"" + std::to_string(i % 10) + "\"\n";
  const Batch batch = all(text);
  ASSERT_EQ(batch.size(), 40000);
  EXPECT_EQ(batch.input[39999][0].item<float>(), 39999);
  EXPECT_EQ(batch.target.sum().item<int64_t>(), 4000 * 45);
  std::string blank = "x,y\n1,2\n";
  for (int i = 0; i < 200000; ++i) blank += "\r\n";
  EXPECT_EQ(all(blank).size(), 1);
  expect_damaged(std::string(17 << 20, ','), {"line 1", "16777216 bytes"}, {.header = false});
}

/// Otherwise all of them would be one long row of names, and the data set would have no sample.
TEST_F(Csv, OtherEndsOfLinesAndEncodingsAreRefused) {
  expect_damaged("a,b\r1,2\r3,4\r", {"line 1", "column 2"});
  expect_damaged("a,b\n1,2\r3,4\n", {"line 2", "column 2"});
  expect_damaged("a,b\n1\r,2\n", {"line 2", "column 1"});
  const std::string text = "a,b\n1,2\n";
  for (const bool big : {false, true}) {
    for (const bool marked : {false, true}) {
      std::string wide = !marked ? "" : big ? "\xfe\xff" : "\xff\xfe";
      for (const char c : text) {
        if (big) wide += '\0';
        wide += c;
        if (!big) wide += '\0';
      }
      expect_damaged(wide, {"line 1", "column 1", "UTF-16"});
    }
  }
  using namespace std::string_literals;
  expect_damaged("a,b\n\"1\0\",2\n"s, {"line 2", "column 1"});
  EXPECT_EQ(all("a,b\r\n1,\"2\"\r\n3,4\r").size(), 2) << "the last line may have half an end";
}

class Cifar : public testing::ScratchFolder {
 protected:
  static std::string records(int count, std::vector<int> labels, int first) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      for (const int label : labels) bytes += static_cast<char>(label + i % 2);
      for (int p = 0; p < 3072; ++p) bytes += static_cast<char>(first + i + p / 1024);
    }
    return bytes;
  }
};

TEST_F(Cifar, TenIsReadFromItsSixFiles) {
  const std::string in = "cifar-10-batches-bin/";
  for (int i = 1; i <= 5; ++i) write(in + "data_batch_" + std::to_string(i) + ".bin", records(2, {i}, 10 * i));
  write(in + "test_batch.bin", records(3, {8}, 100));
  const auto bytes = data::cifar10(folder_.string(), {.normalize = false});
  EXPECT_EQ(bytes.train.size(), 10);
  EXPECT_EQ(bytes.evaluate.size(), 3);
  const Batch all = bytes.train.read_all();
  EXPECT_EQ(all.input.sizes(), (Ints{10, 3, 32, 32}));
  EXPECT_EQ(ints(all.target), (Ints{1, 2, 2, 3, 3, 4, 4, 5, 5, 6}));
  EXPECT_EQ(all.input[3][2][31][31].item<int>(), 23);
  const auto split = data::cifar10(path("cifar-10-batches-bin"));
  const int64_t ids[] = {3, 0};
  const Batch two = split.train.read(ids);
  EXPECT_EQ(two.input.scalar_type(), at::kFloat);
  EXPECT_EQ(two.input[0][2][31][31].item<float>(), (23 / 255.0f - 0.4465f) / 0.2616f);
  EXPECT_EQ(split.train.read({}).input.sizes(), (Ints{0, 3, 32, 32}));
  expect_error<UsageError>([&] { data::cifar10(folder_.string(), {.coarse = true}); }, "LS-OPTION", {".coarse"});
  write(in + "test_batch.bin", records(3, {9}, 100));
  expect_error<DataError>([&] { data::cifar10(folder_.string()); }, "LS-DATA-FILE", {"label 10", "byte 3073"});
  write(in + "test_batch.bin", records(3, {8}, 100).substr(1));
  expect_error<DataError>([&] { data::cifar10(folder_.string()); }, "LS-DATA-FILE",
                          {quoted(in + "test_batch.bin"), "9218 bytes"});
  std::filesystem::remove(path(in + "data_batch_3.bin"));
  expect_error<DataError>([&] { data::cifar10(folder_.string()); }, "LS-DATA-FILE", {quoted(in + "data_batch_3.bin")});
  expect_error<DataError>([&] { data::cifar10(path("nowhere")); }, "LS-DATA-FILE", {quoted("nowhere")});
}

TEST_F(Cifar, HundredHasCoarseAndFineClasses) {
  write("train.bin", records(2, {19 - 1, 98}, 0));
  write("test.bin", records(1, {3, 50}, 0));
  EXPECT_EQ(ints(data::cifar100(folder_.string()).train.read_all().target), (Ints{98, 99}));
  EXPECT_EQ(ints(data::cifar100(folder_.string(), {.coarse = true}).train.read_all().target), (Ints{18, 19}));
}

class Tokens : public testing::ScratchFolder {
 protected:
  template <class T>
  std::string file(int64_t count, const std::string& header = "") const {
    std::string bytes = header;
    for (int64_t i = 0; i < count; ++i) {
      const T value = static_cast<T>(i);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return write("tokens.bin", bytes);
  }
};

TEST_F(Tokens, AreCutIntoWindowsWhoseTargetsAreOneFurther) {
  const Dataset dataset = data::tokens(file<uint16_t>(14), {.context = 4});
  EXPECT_EQ(dataset.size(), 3);
  const int64_t ids[] = {2, 0};
  const Batch batch = dataset.read(ids);
  EXPECT_EQ(ints(batch.input), (Ints{8, 9, 10, 11, 0, 1, 2, 3}));
  EXPECT_EQ(ints(batch.target), (Ints{9, 10, 11, 12, 1, 2, 3, 4}));
  EXPECT_EQ(data::tokens(file<uint16_t>(13), {.context = 4}).size(), 3);
  EXPECT_EQ(data::tokens(file<uint16_t>(12), {.context = 4}).size(), 2);
  EXPECT_EQ(dataset.read({}).input.sizes(), (Ints{0, 4}));
}

TEST_F(Tokens, MayHaveAnyWidthAndAHeader) {
  using data::TokenType;
  const auto last = [&](const std::string& path, TokenType dtype, int64_t header = 0) {
    return data::tokens(path, {.dtype = dtype, .context = 3, .header = header}).read_all().target[2][2].item<int64_t>();
  };
  EXPECT_EQ(last(file<uint8_t>(10), TokenType::kUInt8), 9);
  EXPECT_EQ(last(file<uint32_t>(10), TokenType::kUInt32), 9);
  EXPECT_EQ(last(file<int32_t>(10), TokenType::kInt32), 9);
  EXPECT_EQ(last(file<int64_t>(10), TokenType::kInt64), 9);
  EXPECT_EQ(last(file<uint16_t>(10, std::string(1024, 'h')), TokenType::kUInt16, 1024), 9);
  write("tokens.bin", std::string(8, '\xff'));
  const auto first = [&](TokenType dtype) {
    return data::tokens(path("tokens.bin"), {.dtype = dtype, .context = 1}).read_all().input[0][0].item<int64_t>();
  };
  EXPECT_EQ(first(TokenType::kUInt16), 65535);
  EXPECT_EQ(first(TokenType::kUInt32), 4294967295);
  EXPECT_EQ(first(TokenType::kInt32), -1);
}

TEST_F(Tokens, ThatAreWrongAreNamed) {
  expect_error<DataError>([&] { data::tokens(file<uint16_t>(4), {.context = 4}); }, "LS-DATA-FILE",
                          {"4 tokens", "window of 4"});
  expect_error<DataError>([&] { data::tokens(write("tokens.bin", "12345")); }, "LS-DATA-FILE",
                          {quoted("tokens.bin"), "5 bytes"});
  expect_error<DataError>([&] { data::tokens(file<uint16_t>(4), {.context = 4, .header = 9}); }, "LS-DATA-FILE",
                          {"8 bytes"});
  expect_error<DataError>([&] { data::tokens(file<uint16_t>(9), {.context = 4, .vocabulary = 8}).read_all(); },
                          "LS-DATA-FILE", {"token 8", "byte 16"});
  EXPECT_EQ(data::tokens(file<uint16_t>(9), {.context = 4, .vocabulary = 9}).read_all().size(), 2);
  expect_error<UsageError>([&] { data::tokens(path("tokens.bin"), {.context = 0}); }, "LS-OPTION", {".context 0"});
  expect_error<DataError>([&] { data::tokens(path("nowhere")); }, "LS-DATA-FILE", {quoted("nowhere")});
  expect_error<DataError>([&] { data::tokens(write("empty", ""), {.context = 1}); }, "LS-DATA-FILE", {"0 tokens"});
}

TEST_F(Tokens, OfAVocabularyThatTheDtypeCannotHoldAreRefused) {
  using data::TokenType;
  const auto with = [&](TokenType dtype, int64_t vocabulary) {
    return data::tokens(file<int64_t>(16),
                        {.dtype = dtype, .context = 1, .vocabulary = vocabulary, .check_dtype = false});
  };
  expect_error<UsageError>([&] { with(TokenType::kUInt8, 257); }, "LS-OPTION", {".vocabulary of 257", "256"});
  expect_error<UsageError>([&] { with(TokenType::kUInt16, 65537); }, "LS-OPTION", {".vocabulary of 65537", "65536"});
  expect_error<UsageError>([&] { with(TokenType::kInt32, (int64_t{1} << 31) + 1); }, "LS-OPTION", {"2147483648"});
  expect_error<UsageError>([&] { with(TokenType::kUInt32, (int64_t{1} << 32) + 1); }, "LS-OPTION", {"4294967296"});
  with(TokenType::kUInt8, 256);
  with(TokenType::kUInt16, 65536);
  with(TokenType::kUInt32, int64_t{1} << 32);
  with(TokenType::kInt64, INT64_MAX);
}

TEST_F(Tokens, BeyondTheVocabularyAreRefusedBeforeAnyIsRead) {
  EXPECT_EQ(data::tokens(file<uint16_t>(60000), {.context = 7, .vocabulary = 60000}).size(), 8571);
  expect_error<DataError>([&] { data::tokens(file<uint16_t>(60000), {.context = 7, .vocabulary = 59999}); },
                          "LS-DATA-FILE", {quoted("tokens.bin"), "token 59999", "byte 119998", "vocabulary has 59999"});
  std::string bytes(40, '\0');
  bytes.replace(12, 4, "\xff\xff\xff\xff");
  write("i32.bin", std::string(8, 'h') + bytes);
  const data::TokenOptions options{.dtype = data::TokenType::kInt32, .context = 2, .header = 8, .vocabulary = 5};
  expect_error<DataError>([&] { data::tokens(path("i32.bin"), options); }, "LS-DATA-FILE", {"token -1", "byte 20"});
  // What is written later is found when it is read.
  const Dataset dataset = data::tokens(file<uint16_t>(100), {.context = 4, .vocabulary = 100});
  std::fstream(path("tokens.bin"), std::ios::in | std::ios::out | std::ios::binary).seekp(20).write("\xe8\x03", 2);
  expect_error<DataError>([&] { dataset.read_all(); }, "LS-DATA-FILE", {"token 1000", "byte 20"});
}

TEST_F(Tokens, OfAnotherWidthOrByteOrderAreFound) {
  using data::TokenType;
  const auto expect_found = [&](const std::string& bytes, TokenType dtype, std::string_view what,
                                const testing::Where& where = testing::Where::current()) {
    write("tokens.bin", bytes);
    expect_error<DataError>([&] { data::tokens(path("tokens.bin"), {.dtype = dtype, .context = 2}); }, "LS-DATA-FILE",
                            {quoted("tokens.bin"), what}, where);
    data::tokens(path("tokens.bin"), {.dtype = dtype, .context = 2, .check_dtype = false});
  };
  const auto numbers = [](int64_t count, int64_t below, int width, bool big_endian = false) {
    std::string text;
    uint64_t state = 3;
    for (int64_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t value = (state >> 33) % static_cast<uint64_t>(below);
      for (int k = 0; k < width; ++k) text += static_cast<char>(value >> 8 * (big_endian ? width - 1 - k : k) & 0xff);
    }
    return text;
  };
  for (const int64_t below : {60, 50257, 128000, 256000}) {
    for (const int64_t count : {40, 1000, 200000}) {
      expect_found(numbers(count, below, 4), TokenType::kUInt16, "tokens of 4 bytes");
      expect_found(numbers(count, below, 8), TokenType::kUInt16, "tokens of 8 bytes");
      expect_found(numbers(count, below, 8), TokenType::kUInt32, "tokens of 8 bytes");
      expect_found(numbers(count, below, 4), TokenType::kUInt8, "tokens of 4 bytes");
      expect_found(numbers(count, below, 4, true), TokenType::kInt32, "big-endian");
      expect_found(numbers(count, below, 8, true), TokenType::kInt64, "big-endian");
      // Right ones are taken.
      write("tokens.bin", numbers(count, below, 4));
      data::tokens(path("tokens.bin"), {.dtype = TokenType::kUInt32, .context = 2, .vocabulary = below});
      data::tokens(path("tokens.bin"), {.dtype = TokenType::kInt32, .context = 2});
      write("tokens.bin", numbers(count, below, 8));
      data::tokens(path("tokens.bin"), {.dtype = TokenType::kInt64, .context = 2});
    }
  }
  expect_found(numbers(100, 200, 2), TokenType::kUInt8, "tokens of 2 bytes");
  expect_found(numbers(100, 200, 2, true), TokenType::kUInt16, "big-endian");
  expect_found(numbers(100, 50257, 2), TokenType::kUInt32, "narrower tokens");
  for (const int64_t below : {2, 4, 16, 60, 256, 5000, 50257, 65536}) {
    for (const int64_t count : {12, 64, 100000}) {
      write("tokens.bin", numbers(count, below, 2));
      data::tokens(path("tokens.bin"), {.context = 2});
      if (below > 256) continue;
      write("tokens.bin", numbers(count, below, 1));
      data::tokens(path("tokens.bin"), {.dtype = TokenType::kUInt8, .context = 2});
    }
  }
  expect_error<DataError>(
      [&] {
        data::tokens(write("a.npy", std::string("\x93NUMPY\1\0\x76\0", 10) + numbers(200, 9, 2)), {.context = 2});
      },
      "LS-DATA-FILE", {quoted("a.npy"), "128 bytes"});
  data::tokens(path("a.npy"), {.context = 2, .header = 128});
}

TEST_F(Tokens, MayBeCompressed) {
  const std::string plain = file<uint16_t>(100);
  std::ifstream in(plain, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const Dataset dataset = data::tokens(write("packed.bin", testing::gzip_member(bytes)), {.context = 3});
  EXPECT_TRUE(at::equal(dataset.read_all().target, data::tokens(plain, {.context = 3}).read_all().target));
  write("packed.bin", testing::gzip_member(bytes) + "x");
  expect_error<DataError>([&] { data::tokens(path("packed.bin"), {.context = 3}); }, "LS-DATA-FILE",
                          {quoted("packed.bin")});
}

class CompressedFiles : public testing::ScratchFolder {};

TEST_F(CompressedFiles, OfEachFormatAreReadWhateverTheirNamesAndToTheirEnds) {
  using testing::gzip_member;
  const std::string rows = "a,b\n1,2\n3,4\n";
  const std::string text(1000, 'x');
  const std::string two = gzip_member(rows.substr(0, 7)) + gzip_member(rows.substr(7));
  EXPECT_EQ(data::csv(write("rows.csv", two)).size(), 2);
  EXPECT_EQ(data::text(write("a.txt", gzip_member(text)), 10).train.size(), 89);
  for (const std::string& behind : {std::string("more"), two.substr(0, 30)}) {
    expect_error<DataError>([&] { data::csv(write("rows.csv", two + behind)); }, "LS-DATA-FILE", {quoted("rows.csv")});
    expect_error<DataError>([&] { data::text(write("a.txt", gzip_member(text) + behind), 10); }, "LS-DATA-FILE",
                            {quoted("a.txt")});
  }
  expect_error<DataError>([&] { data::csv(write("rows.csv", "\x28\xb5\x2f\xfd")); }, "LS-DATA-FILE", {"zstd"});
  expect_error<DataError>([&] { data::text(write("a.txt", "\x28\xb5\x2f\xfd"), 10); }, "LS-DATA-FILE", {"zstd"});
}

TEST_F(Tokens, OfAFileThatIsCutOffMeanwhileAreAnError) {
  const Dataset dataset = data::tokens(file<uint16_t>(100000), {.context = 10});
  std::filesystem::resize_file(path("tokens.bin"), 50000);
  const int64_t early[] = {0};
  EXPECT_EQ(dataset.read(early).size(), 1);
  const int64_t late[] = {9998};
  expect_error<DataError>([&] { dataset.read(late); }, "LS-DATA-FILE", {quoted("tokens.bin"), "200000 bytes"});
}

TEST_F(Tokens, MayBeReadByManyThreads) {
  const Dataset dataset = data::tokens(file<uint16_t>(10001), {.context = 10});
  std::vector<std::thread> threads;
  std::vector<int64_t> sums(4);
  for (std::size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] { sums[t] = dataset.read_all().input.sum().item<int64_t>(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, 9999 * 10000 / 2);
}

}  // namespace
}  // namespace lockstep
