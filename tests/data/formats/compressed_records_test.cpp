// Records of compressed files: members, what lies behind them, cuts, damage, and names that do not say what a file is.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "lockstep/data/formats/records/crc32c.h"
#include "lockstep/data/sources/record_files.h"
#include "tests/support/gzip.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using data::RecordFiles;
using data::RecordPlace;
using testing::expect_error;
using testing::gzip_member;
using Texts = std::vector<std::string>;

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string framed(const std::string& bytes) {
  const std::string length = little_endian(bytes.size(), 8);
  return length + little_endian(internal::masked_crc32c(length), 4) + bytes +
         little_endian(internal::masked_crc32c(bytes), 4);
}

/// Lines "0" to "<count - 1>", each with something that does not compress.
Texts numbered(int count, int width = 20) {
  Texts lines;
  uint32_t state = 7;
  for (int i = 0; i < count; ++i) {
    std::string line = std::to_string(i) + " ";
    for (int k = 0; k < width; ++k)
      line += static_cast<char>('!' + ((state = state * 1664525 + 1013904223) >> 24) % 90);
    lines.push_back(line);
  }
  return lines;
}

std::string text_of(const Texts& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class CompressedRecords : public testing::ScratchFolder {
 protected:
  /// What a reader gives up to the end or to the first error; the error's message comes behind it.
  static std::pair<Texts, std::string> read(const RecordFiles& files, const RecordPlace& at = {}) {
    Texts result;
    std::string bytes;
    try {
      const auto reader = files.open(0, at);
      try {
        while (reader->next(bytes)) result.push_back(bytes);
      } catch (const DataError&) {
        EXPECT_TRUE(bytes.empty());
        std::string behind;
        EXPECT_FALSE(reader->next(behind)) << "it is at its end";
        throw;
      }
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), "LS-DATA-FILE");
      return {result, error.what()};
    }
    return {result, ""};
  }
  std::pair<Texts, std::string> lines(const std::string& packed, const std::string& name = "a.gz") const {
    return read(*data::lines({write(name, packed)}));
  }
  void expect_all(const Texts& expected, const std::string& packed, const std::string& name = "a.gz") const {
    const auto [found, error] = lines(packed, name);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(error, "");
  }
  /// Gives `expected`, then an error that has these words.
  void expect_then_error(const Texts& expected, const std::string& packed, const Texts& words,
                         const std::string& name = "a.gz") const {
    const auto [found, error] = lines(packed, name);
    EXPECT_EQ(found, expected);
    EXPECT_NE(error.find(quoted(name)), std::string::npos) << error;
    for (const std::string& word : words) EXPECT_NE(error.find(word), std::string::npos) << word << " in " << error;
  }
};

TEST_F(CompressedRecords, OfSeveralMembersAreOneStream) {
  const Texts all = numbered(12);
  const std::string text = text_of(all);
  const std::string first = gzip_member(text.substr(0, 100), {.name = "first.txt"});
  const std::string rest = gzip_member(text.substr(100), {.name = "rest.txt", .extra = "BC\2\0xx"});
  expect_all(all, first + gzip_member("") + rest + gzip_member(""));
  const auto files = data::lines({write("b.gz", first + gzip_member("") + rest)});
  const auto reader = files->open(0, {});
  std::string bytes;
  for (std::size_t i = 0; reader->next(bytes); ++i)
    EXPECT_EQ(read(*files, reader->place()).first, Texts(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()));
}

TEST_F(CompressedRecords, BehindWhichZerosLieAreReadToTheEnd) {
  const std::string one = gzip_member("x\ny\n");
  expect_all({"x", "y"}, one + std::string(1, '\0'));
  expect_all({"x", "y"}, one + std::string(100000, '\0'));
  expect_all({"x", "y", "z"}, one + std::string(511, '\0') + gzip_member("z"));
  expect_all({}, gzip_member(""));
  expect_all({}, gzip_member("") + std::string(3, '\0'));
}

TEST_F(CompressedRecords, BehindWhichSomethingElseLiesEndWithItsPlace) {
  const Texts all = numbered(12);
  const Texts four(all.begin(), all.begin() + 4);
  const std::string packed = gzip_member(text_of(four));
  const std::string place = "at its byte " + std::to_string(packed.size());
  const std::string rest = gzip_member(text_of(Texts(all.begin() + 4, all.end())));
  const std::string count = std::to_string(text_of(four).size()) + " bytes of contents";
  expect_then_error(four, packed + "garbage" + rest, {place, count, "record 4"});
  expect_then_error(four, packed + "x", {place});
  expect_then_error(four, packed + text_of(all), {place});
  expect_then_error(four, packed + std::string(7, '\0') + "x" + rest,
                    {"at its byte " + std::to_string(packed.size() + 7)});
  expect_then_error(four, packed + "\x1f\x8c" + rest, {place});
  expect_then_error(four, packed + "\x1f\x8b\x07" + rest, {"begins at byte " + std::to_string(packed.size())});
  expect_then_error(four, packed + "\x1f", {"cut off"});
  expect_then_error(four, packed + rest.substr(1), {place});
}

TEST_F(CompressedRecords, ComeWholeBeforeAnyCut) {
  const Texts all = numbered(300);
  const std::string whole = text_of(all);
  const std::string packed = gzip_member(whole.substr(0, 3000)) + gzip_member(whole.substr(3000));
  std::size_t most = 0;
  for (std::size_t size = 0; size < packed.size(); size += size < 40 ? 1 : 97) {
    const auto [found, error] = lines(packed.substr(0, size));
    const bool between = size == gzip_member(whole.substr(0, 3000)).size();
    EXPECT_EQ(error.empty(), between) << size;
    if (!between) {
      EXPECT_NE(error.find("cut off at its byte " + std::to_string(size)), std::string::npos) << error;
    }
    ASSERT_LE(found.size(), all.size());
    EXPECT_EQ(found, Texts(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(found.size())));
    EXPECT_GE(found.size(), most) << "a longer file has no fewer";
    most = found.size();
  }
  EXPECT_GT(most, all.size() * 9 / 10);
}

TEST_F(CompressedRecords, OfDamagedBytesEndWithAnError) {
  const Texts all = numbered(300);
  const std::string good = gzip_member(text_of(all));
  for (const std::size_t from_end : {1u, 4u, 5u, 8u}) {
    std::string packed = good;
    packed[packed.size() - from_end] = static_cast<char>(packed[packed.size() - from_end] ^ 1);
    const auto [found, error] = lines(packed);
    EXPECT_EQ(found, all) << "only its end says that the member is damaged";
    EXPECT_NE(error.find("may be wrong"), std::string::npos) << error;
  }
  for (std::size_t at = 12; at < good.size() - 8; at += 501) {
    std::string packed = good;
    packed[at] = static_cast<char>(packed[at] ^ 0x10);
    EXPECT_NE(lines(packed).second, "") << "byte " << at;
  }
}

TEST_F(CompressedRecords, AreFoundByTheFirstBytesWhateverTheName) {
  const std::string packed = gzip_member("x\ny");
  for (const char* name : {"a", "a.txt", "a.jsonl", "a.zst", "a.tgz", "a.gz"}) expect_all({"x", "y"}, packed, name);
  expect_all({"x", "y"}, "x\ny", "plain.gz");
  expect_all({"\x1f\x8b\x07 is no gzip"}, "\x1f\x8b\x07 is no gzip", "a.txt");
  expect_then_error({}, "", {"cut off at its byte 0"}, "empty.gz");
  expect_then_error({}, "\x1f", {"cut off at its byte 1"}, "one.gz");
  expect_then_error({}, "\x1f\x8b\x07 is no gzip", {"at byte 0"}, "b.gz");
  expect_all({}, "", "empty");
  expect_all({"\x1f"}, "\x1f", "one");
}

TEST_F(CompressedRecords, InOtherWaysAreRefusedByName) {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> all{{"\x28\xb5\x2f\xfd\4\0"s, "zstd"},
                                                             {"\xfd\x37zXZ\0\0\4"s, "xz"},
                                                             {"BZh91AY&SY\1\2"s, "bzip2"},
                                                             {"\x04\x22\x4d\x18\x64\x40"s, "lz4"},
                                                             {"PK\3\4\x14"s, "zip"},
                                                             {"\x51\x2a\x4d\x18\1\0\0\0x"s, "zstd or lz4"}};
  for (const auto& [bytes, name] : all) {
    for (const char* file : {"a", "a.gz", "a.tar"}) {
      const auto files = data::lines({write(file, bytes)});
      expect_error<DataError>([&] { files->open(0, {}); }, "LS-DATA-FILE", {quoted(file), name});
    }
  }
  expect_all({"BZh9 is a text"}, "BZh9 is a text", "a.txt");
  expect_all({"PK"}, "PK", "a.txt");
}

TEST_F(CompressedRecords, OfTensorFlowAreToldApartByTheFirstChecksum) {
  // The length of the first record has the first bytes of a gzip file.
  const std::string large(0x088b1f, 'x');
  EXPECT_EQ(read(*data::tf_records({write("a", framed(large) + framed("y"))})).first, (Texts{large, "y"}));
  const std::string packed = gzip_member(framed("one") + framed("two"));
  EXPECT_EQ(read(*data::tf_records({write("b", packed)})).first, (Texts{"one", "two"}));
  const auto [found, error] = read(*data::tf_records({write("c", packed + "more")}));
  EXPECT_EQ(found, (Texts{"one", "two"}));
  EXPECT_NE(error.find("at its byte " + std::to_string(packed.size())), std::string::npos);
  EXPECT_NE(error.find("how many records these are is not known"), std::string::npos);
}

TEST_F(CompressedRecords, MayCrossMembers) {
  const std::string all = framed(std::string(5000, 'a')) + framed("b") + framed(std::string(70000, 'c'));
  std::string packed;
  for (std::size_t at = 0; at < all.size(); at += 777) packed += gzip_member(all.substr(at, 777));
  EXPECT_EQ(read(*data::tf_records({write("a.gz", packed)})).first,
            (Texts{std::string(5000, 'a'), "b", std::string(70000, 'c')}));
}

TEST_F(CompressedRecords, AndPlainOnesOfAFileThatChangesMeanwhileEndWithAnError) {
  const Texts all = numbered(60000);  // more than one buffer
  for (const bool is_packed : {false, true}) {
    for (const bool grows : {false, true}) {
      const std::string bytes = is_packed ? gzip_member(text_of(all)) : text_of(all);
      const auto reader = data::lines({write("a", bytes)})->open(0, {});
      std::string line;
      ASSERT_TRUE(reader->next(line));
      if (grows) {
        write("a", bytes + (is_packed ? gzip_member("more\n") : "more\n"));
      } else {
        std::filesystem::resize_file(path("a"), bytes.size() / 2);
      }
      std::size_t count = 1;
      const auto rest = [&] {
        for (; reader->next(line); ++count) ASSERT_EQ(line, all[count]);
      };
      expect_error<DataError>(rest, "LS-DATA-FILE",
                              {quoted("a"), std::to_string(bytes.size()) + " bytes when it was opened"});
      EXPECT_EQ(count == all.size(), grows);
    }
  }
}

}  // namespace
}  // namespace lockstep
