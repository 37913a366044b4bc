// Lines and TFRecords: what is read, which damage is named, and how reading goes on at a place.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <zlib.h>

#include <cstring>

#include "lockstep/data/formats/expand_paths.h"
#include "lockstep/data/formats/records/crc32c.h"
#include "lockstep/data/sources/record_files.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using data::RecordFiles;
using data::RecordPlace;
using testing::expect_error;

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string framed(const std::string& bytes) {
  const std::string length = number(bytes.size(), 8);
  return length + number(internal::masked_crc32c(length), 4) + bytes + number(internal::masked_crc32c(bytes), 4);
}

/// What a reader gives up to the end; a bad record as "!".
std::vector<std::string> all_of(data::RecordReader& reader, std::vector<RecordPlace>* places = nullptr) {
  std::vector<std::string> result;
  std::string bytes;
  while (true) {
    try {
      if (!reader.next(bytes)) return result;
      result.push_back(bytes);
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), "LS-DATA-RECORD");
      result.emplace_back("!");
    }
    if (places != nullptr) places->push_back(reader.place());
    if (result.size() > 10000) throw std::logic_error("a reader does not end");
  }
}

std::vector<std::string> all_of(const RecordFiles& files, std::vector<RecordPlace>* places = nullptr) {
  std::vector<std::string> result;
  for (std::size_t file = 0; file < files.files().size(); ++file) {
    for (const std::string& one : all_of(*files.open(static_cast<int64_t>(file), {}), places)) result.push_back(one);
  }
  return result;
}

using Texts = std::vector<std::string>;

class Records : public testing::ScratchFolder {
 protected:
  std::string packed(const std::string& name, const std::string& bytes) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path(name);
  }
  /// From each place that a reader gave, another one gives what followed.
  static void expect_continues_everywhere(const RecordFiles& files) {
    std::vector<RecordPlace> places;
    const Texts whole = all_of(*files.open(0, {}), &places);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(places[i].record, static_cast<int64_t>(i));
      const auto reader = files.open(0, places[i]);
      std::vector<RecordPlace> later;
      EXPECT_EQ(all_of(*reader, &later), Texts(whole.begin() + static_cast<std::ptrdiff_t>(i), whole.end()))
          << "from record " << i;
      EXPECT_EQ(later.front().record, places[i].record);
      EXPECT_EQ(later.front().offset, places[i].offset);
    }
  }
};

TEST(Crc32c, IsThatOfRfc3720) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  for (auto* const crc : {&internal::crc32c, &internal::crc32c_by_tables}) {
    EXPECT_EQ(crc("123456789"), 0xe3069283u);
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
    EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
    EXPECT_EQ(crc(ascending), 0x46dd794eu);
    EXPECT_EQ(crc(""), 0u);
  }
}

TEST_F(Records, OfTextAreLinesWithoutTheirEnds) {
  const auto files = data::lines({write("a", "one\ntwo\r\n\n\r\nlast \r\r\nno end")});
  EXPECT_EQ(all_of(*files), (Texts{"one", "two", "", "", "last \r", "no end"}));
  expect_continues_everywhere(*files);
  EXPECT_EQ(all_of(*data::lines({write("b", "")})), Texts{});
  EXPECT_EQ(all_of(*data::lines({write("c", "\n")})), Texts{""});
  EXPECT_EQ(all_of(*data::lines({write("d", std::string("a\0b\n", 4))})), (Texts{std::string("a\0b", 3)}));
}

TEST_F(Records, OfManyLinesComeWhole) {
  std::string text;
  Texts expected;
  for (int i = 0; i < 3000; ++i) {
    expected.emplace_back(static_cast<std::size_t>(i % 700), static_cast<char>('a' + i % 26));
    text += expected.back() + "\n";
  }
  EXPECT_EQ(all_of(*data::lines({write("long", text)})), expected) << "1 MB: more than one buffer";
}

TEST_F(Records, AboveTheLimitAreNamedAndPassedOver) {
  const auto files = data::lines({write("a", "12345\n123456\n1234567\n1\n")}, {.max_bytes = 6});
  EXPECT_EQ(all_of(*files), (Texts{"12345", "123456", "!", "1"}));
  const auto reader = files->open(0, {});
  std::string bytes;
  reader->next(bytes);
  reader->next(bytes);
  expect_error<DataError>([&] { reader->next(bytes); }, "LS-DATA-RECORD",
                          {quoted("a"), "record 2", "byte 13", "7 bytes", "limit of 6"});
  EXPECT_EQ(all_of(*data::tf_records({write("t", framed("1234567") + framed("1"))}, {.max_bytes = 6})),
            (Texts{"!", "1"}));
}

TEST_F(Records, OfTensorFlowAreReadWithTheirChecksums) {
  const std::string large(300000, 'x');
  const auto files = data::tf_records({write("a", framed("one") + framed("") + framed(large) + framed("two"))});
  EXPECT_EQ(all_of(*files), (Texts{"one", "", large, "two"}));
  expect_continues_everywhere(*files);
  EXPECT_EQ(all_of(*data::tf_records({write("b", "")})), Texts{});
}

TEST_F(Records, WithAnyOneBitWrongAreNamed) {
  const std::string whole = framed("first") + framed("second one") + framed("third");
  const std::size_t begin = framed("first").size();
  const std::size_t end = begin + framed("second one").size();
  for (std::size_t bit = 8 * begin; bit < 8 * end; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const bool in_length = bit / 8 < begin + 12;
    EXPECT_EQ(all_of(*data::tf_records({write("a", damaged)})),
              in_length ? (Texts{"first", "!"}) : (Texts{"first", "!", "third"}))
        << "bit " << bit;
  }
}

TEST_F(Records, ThatAreCutOffAnywhereAreNamed) {
  const std::string whole = framed("first") + framed("second");
  const std::size_t begin = framed("first").size();
  for (std::size_t size = begin + 1; size < whole.size(); ++size) {
    const auto files = data::tf_records({write("a", whole.substr(0, size))});
    const auto reader = files->open(0, {});
    std::string bytes;
    ASSERT_TRUE(reader->next(bytes));
    const std::string at = "byte " + std::to_string(begin);
    expect_error<DataError>([&] { reader->next(bytes); }, "LS-DATA-RECORD",
                            {quoted("a"), "record 1", at, "the file ends"});
    EXPECT_FALSE(reader->next(bytes)) << "it is at its end";
  }
}

TEST_F(Records, ThatPromiseMoreThanTheyHaveTakeNoMemory) {
  for (const uint64_t length : {uint64_t{1} << 27, uint64_t{1} << 62, UINT64_MAX}) {
    const std::string promised = number(length, 8);
    const auto files = data::tf_records({write("a", promised + number(internal::masked_crc32c(promised), 4) + "few")},
                                        {.max_bytes = INT64_MAX});
    EXPECT_EQ(all_of(*files), Texts{"!"});
  }
}

TEST_F(Records, MayBeCompressed) {
  const std::string whole = framed("one") + framed(std::string(100000, 'y')) + framed("three");
  const auto files = data::tf_records({packed("a.gz", whole)});
  EXPECT_EQ(all_of(*files), (Texts{"one", std::string(100000, 'y'), "three"}));
  expect_continues_everywhere(*files);
  EXPECT_EQ(all_of(*data::lines({packed("b.gz", "x\ny")})), (Texts{"x", "y"}));
}

TEST_F(Records, WithABrokenCompressionEndWithAnError) {
  std::string noise;
  uint32_t state = 1;
  for (int i = 0; i < 300000; ++i) noise += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  packed("a.gz", framed(noise) + framed("two"));
  std::ifstream in(path("a.gz"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  write("a.gz", bytes.substr(0, bytes.size() / 2));
  const auto reader = data::tf_records({path("a.gz")})->open(0, {});
  std::string record;
  expect_error<DataError>([&] { reader->next(record); }, "LS-DATA-FILE", {quoted("a.gz"), "cut off"});
  EXPECT_FALSE(reader->next(record));
}

TEST_F(Records, ComeFromFilesInSortedOrder) {
  for (const char* name : {"s/b-10", "s/b-2", "s/a-1", "s/c", "t/part-008", "t/part-009", "t/part-010"})
    write(name, name);
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::string> all;
    for (const std::string& file : internal::expand_paths(patterns)) all.push_back(file.substr(path("").size()));
    return all;
  };
  EXPECT_EQ(names({path("s/c"), path("s/*-*")}), (Texts{"s/c", "s/a-1", "s/b-10", "s/b-2"}));
  EXPECT_EQ(names({path("t/part-{008..010}")}), (Texts{"t/part-008", "t/part-009", "t/part-010"}));
  EXPECT_EQ(names({path("s/[ab]-?")}), (Texts{"s/a-1", "s/b-2"}));
  write("s/odd[1]", "");
  EXPECT_EQ(names({path("s/odd[1]")}), Texts{"s/odd[1]"}) << "a file that is there is meant";
  expect_error<DataError>([&] { data::lines({path("s/x*")}); }, "LS-DATA-FILE", {quoted("s/x*")});
  expect_error<DataError>([&] { data::lines({path("nowhere")}); }, "LS-DATA-FILE",
                          {quoted("nowhere"), "does not exist"});
  expect_error<DataError>([&] { data::lines({path("s")}); }, "LS-DATA-FILE", {quoted("s"), "plain file"});
  expect_error<DataError>([&] { data::lines({path("t/part-{008..011}")}); }, "LS-DATA-FILE", {quoted("t/part-011")});
  expect_error<UsageError>([&] { data::lines({path("{9..1}")}); }, "LS-OPTION", {"'9'", "'1'"});
  expect_error<UsageError>([&] { data::lines({path("{0..99999999999}")}); }, "LS-OPTION");
  expect_error<UsageError>([] { data::lines({}); }, "LS-OPTION");
  expect_error<UsageError>([&] { data::lines({path("s/c")}, {.max_bytes = 0}); }, "LS-OPTION", {".max_bytes of 0"});
  EXPECT_EQ(all_of(*data::lines({path("s/*-*")})), (Texts{"s/a-1", "s/b-10", "s/b-2"}));
}

TEST_F(Records, OfAFileThatIsGoneOrShorterAreAnError) {
  const auto files = data::lines({write("a", "one\ntwo\n")});
  expect_error<DataError>([&] { files->open(0, {0, 3, 9}); }, "LS-DATA-FILE", {quoted("a"), "8 bytes", "byte 9"});
  expect_error<UsageError>([&] { files->open(1, {}); }, "LS-SAMPLE-RANGE", {"file 1"});
  std::filesystem::remove(path("a"));
  expect_error<DataError>([&] { files->open(0, {}); }, "LS-DATA-FILE", {quoted("a")});
}

// tf.train.Example

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7f) | 0x80);
  return text + static_cast<char>(value);
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string entry(const std::string& name, const std::string& feature) {
  return field(1, field(1, name) + field(2, feature));
}
std::string floats(const std::vector<float>& values) {
  std::string text(values.size() * 4, '\0');
  std::memcpy(text.data(), values.data(), text.size());
  return text;
}

TEST(TfExample, HasListsOfThreeKinds) {
  std::string ints;
  for (const int64_t value : {int64_t{0}, int64_t{300}, int64_t{-1}, INT64_MIN})
    ints += varint(static_cast<uint64_t>(value));
  const std::string record =
      field(1, entry("label", field(3, field(1, ints))) + entry("image", field(1, field(1, "bytes") + field(1, ""))) +
                   entry("weight", field(2, field(1, floats({0.5f, -2.0f})))) + entry("none", ""));
  const data::TfExample example = data::parse_tf_example(record);
  ASSERT_EQ(example.size(), 4u);
  EXPECT_EQ(example.at("label").ints, (std::vector<int64_t>{0, 300, -1, INT64_MIN}));
  EXPECT_EQ(example.at("image").bytes, (std::vector<std::string>{"bytes", ""}));
  EXPECT_EQ(example.at("weight").floats, (std::vector<float>{0.5f, -2.0f}));
  EXPECT_EQ(example.at("none").kind, data::TfFeature::Kind::kNone);
  const at::Tensor label = data::tensor_of(example.at("label"));
  EXPECT_TRUE(torch::equal(label, torch::tensor({int64_t{0}, int64_t{300}, int64_t{-1}, INT64_MIN})));
  EXPECT_TRUE(torch::equal(data::tensor_of(example.at("weight")), torch::tensor({0.5f, -2.0f})));
  expect_error<DataError>([&] { data::tensor_of(example.at("image")); }, "LS-DATA-RECORD", {"2 texts"});
  expect_error<DataError>([&] { data::tensor_of(example.at("none")); }, "LS-DATA-RECORD");
  EXPECT_EQ(data::tensor_of({.kind = data::TfFeature::Kind::kBytes, .bytes = {"ab"}}).scalar_type(), at::kByte);
}

TEST(TfExample, TakesNumbersOneByOneUnknownFieldsAndListsInParts) {
  const std::string one_by_one = varint(1 << 3) + varint(7) + varint(1 << 3) + varint(8);
  const std::string two = varint(1 << 3 | 5) + floats({1.5f});
  const std::string unknown =
      varint(9 << 3) + varint(1) + varint(10 << 3 | 1) + std::string(8, 'x') + field(11, "text");
  const std::string record =
      unknown + field(1, unknown + entry("a", field(3, one_by_one) + field(3, field(1, varint(9))) + unknown) +
                             entry("b", field(3, one_by_one) + field(2, two)) + entry("a", field(3, one_by_one)));
  const data::TfExample example = data::parse_tf_example(record);
  EXPECT_EQ(example.at("a").ints, (std::vector<int64_t>{7, 8})) << "the last entry of a name counts";
  EXPECT_EQ(example.at("b").floats, (std::vector<float>{1.5f})) << "the last kind counts";
  EXPECT_TRUE(example.at("b").ints.empty());
  EXPECT_EQ(
      data::parse_tf_example(field(1, entry("a", field(3, one_by_one) + field(3, field(1, varint(9)))))).at("a").ints,
      (std::vector<int64_t>{7, 8, 9}));
  EXPECT_TRUE(data::parse_tf_example("").empty());
}

TEST(TfExample, ThatIsDamagedIsNamedWithTheByte) {
  const auto expect_damaged = [](const std::string& record, std::string_view at,
                                 const testing::Where& where = testing::Where::current()) {
    expect_error<DataError>([&] { data::parse_tf_example(record); }, "LS-DATA-RECORD", {at}, where);
  };
  expect_damaged("\x0a", "byte 1");
  expect_damaged("\x0a\x05xx", "byte 2");
  expect_damaged(field(1, entry("a", field(2, field(1, "123")))), "byte 13");
  expect_damaged(std::string(11, '\xff'), "byte 0");
  expect_damaged(std::string(1, '\0'), "byte 0");
  expect_damaged("\x0b", "byte 0");  // a group
  expect_damaged(field(1, "\x0a\x80"), "byte 3");
}

}  // namespace
}  // namespace lockstep
