// Samples of tar archives: WebDataset's convention, the formats of long names, and damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/data/sources/record_files.h"
#include "tests/support/gzip.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::gzip_member;
using Texts = std::vector<std::string>;

/// A file of an archive in ustar's format, its header first.
std::string member(const std::string& name, const std::string& bytes, char type = '0') {
  char header[512] = {};
  std::memcpy(header, name.data(), std::min<std::size_t>(name.size(), 100));
  std::snprintf(header + 100, 8, "%07o", 0644);
  std::snprintf(header + 124, 12, "%011o", static_cast<unsigned>(bytes.size()));
  header[156] = type;
  std::memcpy(header + 257, "ustar\00000", 8);
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(header + 148, 8, "%06o", sum);
  std::string padded = bytes;
  padded.resize((bytes.size() + 511) / 512 * 512);
  return std::string(header, sizeof header) + padded;
}
const std::string kEnd(1024, '\0');

std::string text_of(const data::TarSample& sample) {
  std::string text = sample.key + ":";
  for (const auto& [name, bytes] : sample.fields) text += " " + name + "=" + bytes;
  return text;
}

class Tar : public testing::ScratchFolder {
 protected:
  /// Each sample as a text; a bad one as "!".
  std::vector<std::string> samples(const data::RecordFiles& files, data::RecordPlace at = {},
                                   std::vector<data::RecordPlace>* places = nullptr) const {
    const auto reader = files.open(0, at);
    std::vector<std::string> result;
    std::string record;
    while (true) {
      try {
        if (!reader->next(record)) return result;
        result.push_back(text_of(data::parse_tar_sample(record)));
      } catch (const DataError& error) {
        EXPECT_EQ(error.code(), "LS-DATA-RECORD");
        result.emplace_back("!");
      }
      if (places != nullptr) places->push_back(reader->place());
      if (result.size() > 1000) throw std::logic_error("a reader does not end");
    }
  }
  std::vector<std::string> samples(const std::string& archive) const {
    return samples(*data::tar_samples({write("a.tar", archive)}));
  }
  /// The archive's first bad record has these values; others follow.
  void expect_damaged_record(const std::string& archive, std::initializer_list<std::string_view> values,
                             const testing::Where& where = testing::Where::current()) const {
    const auto reader = data::tar_samples({write("a.tar", archive)})->open(0, {});
    std::string record;
    const auto read = [&] {
      while (reader->next(record)) {
      }
    };
    expect_error<DataError>(read, "LS-DATA-RECORD", values, where);
    EXPECT_TRUE(reader->next(record));
  }
  /// The error that the archive's first bad sample gives has these values.
  void expect_damaged(const std::string& archive, std::initializer_list<std::string_view> values,
                      const testing::Where& where = testing::Where::current()) const {
    const auto reader = data::tar_samples({write("a.tar", archive)})->open(0, {});
    std::string record;
    const auto read = [&] {
      while (reader->next(record)) {
      }
    };
    expect_error<DataError>(read, "LS-DATA-RECORD", values, where);
    EXPECT_FALSE(reader->next(record));
  }
};

TEST_F(Tar, SamplesAreFilesOfOneNameSideBySide) {
  const std::string archive = member("d/1.JPG", "one") + member("d/1.cls", "7") + member("d/2.jpg", "two") +
                              member("d/2.seg.png", "mask") + member("e/2.jpg", std::string(600, 'x')) +
                              member("e/1.txt", "later") + kEnd;
  const auto files = data::tar_samples({write("a.tar", archive)}, {.fields = Texts{}});
  std::vector<data::RecordPlace> places;
  const Texts whole = samples(*files, {}, &places);
  EXPECT_EQ(whole, (Texts{"d/1: cls=7 jpg=one", "d/2: jpg=two seg.png=mask", "e/2: jpg=" + std::string(600, 'x'),
                          "e/1: txt=later"}));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(samples(*files, places[i]), Texts(whole.begin() + static_cast<std::ptrdiff_t>(i), whole.end()));
  }
}

TEST_F(Tar, FilesWithoutAStemFoldersAndLinksArePassedOver) {
  EXPECT_EQ(
      samples(member("d/", "", '5') + member("README", "text") + member(".hidden.txt", "h") + member("l.jpg", "", '2') +
              member("d/.x", "") + member("d.e/name", "") + member("./1.a", "b") + kEnd),
      (Texts{"./1: a=b"}));
  EXPECT_EQ(samples(kEnd), Texts{});
}

TEST_F(Tar, ArchivesOfTheProgramTarAreReadInEachFormat) {
  const std::string deep = "d/" + std::string(120, 'n') + "/" + std::string(130, 'm');
  write("in/" + deep + ".jpg", "picture");
  write("in/" + deep + ".cls", "3");
  write("in/z/short.jpg", "s");
  write("in/z/short.cls", "4");
  for (const char* format : {"gnu", "pax", "posix", "oldgnu"}) {
    const std::string command =
        "tar --format=" + std::string(format) + " --sort=name -C " + path("in") + " -cf " + path("a.tar") + " d z";
    ASSERT_EQ(std::system(command.c_str()), 0);
    const auto files = data::tar_samples({path("a.tar")});
    std::vector<data::RecordPlace> places;
    EXPECT_EQ(samples(*files, {}, &places), (Texts{deep + ": cls=3 jpg=picture", "z/short: cls=4 jpg=s"})) << format;
    EXPECT_EQ(samples(*files, places.at(1)), (Texts{"z/short: cls=4 jpg=s"})) << format;
  }
  ASSERT_EQ(std::system(("tar -C " + path("in") + " -czf " + path("a.tgz") + " z").c_str()), 0);
  EXPECT_EQ(samples(*data::tar_samples({path("a.tgz")})), (Texts{"z/short: cls=4 jpg=s"}));
}

TEST_F(Tar, SamplesThatAreWrongArePassedOver) {
  const std::string good = member("9.a", "x");
  EXPECT_EQ(samples(member("1.a", "x") + member("1.A", "y") + member("1.b", "z") + good + kEnd),
            (Texts{"!", "9: a=x"}));
  write("a.tar", member("1.a", std::string(100, 'x')) + member("1.b", std::string(2000, 'y')) + good + kEnd);
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.max_bytes = 1000})), (Texts{"!", "9: a=x"}));
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.max_bytes = 1})), (Texts{"!", "!"}));
}

TEST_F(Tar, DamageIsNamedWithTheSampleAndThePlace) {
  const std::string one = member("1.a", "x");
  expect_damaged("", {"record 0", "byte 0"});
  expect_damaged(one, {"record 0", "byte 1024", "mark of the end"});
  expect_damaged(one + kEnd + one, {"byte 2048", "more follows"});
  expect_damaged(one + std::string(512, 'x') + kEnd, {"byte 1024", "checksum"});
  expect_damaged(member("1.a", std::string(600, 'x')).substr(0, 700), {"'1.a'", "600 bytes", "byte 700"});
  expect_damaged(one + member("2.a", "y", 'S') + kEnd, {"byte 1024", "sparse"});
  expect_damaged(member("x", "12 path=1.a\n", 'x').replace(512, 2, "99") + one + kEnd, {"byte 0", "pax"});
  expect_damaged(member("x", "30 GNU.sparse.realsize=100000\n", 'x') + one + kEnd, {"sparse"});
  EXPECT_EQ(samples(member("x", "12 path=7.a\n", 'x') + one + member("x", "12 path=8.a\n", 'g') + one + kEnd),
            (Texts{"7: a=x", "1: a=x"}));
}

TEST_F(Tar, AnyCutIsNoticed) {
  const std::string archive =
      member("1.a", "x") + member("1.b", std::string(600, 'y')) + member("2.a", "z") + member("2.b", "z") + kEnd;
  for (std::size_t size = 0; size < archive.size() - 512; size += 64) {
    const Texts found = samples(archive.substr(0, size));
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.back(), "!") << "of " << size << " bytes";
    if (found.size() > 1) {
      EXPECT_EQ(found[0], "1: a=x b=" + std::string(600, 'y'));
    }
  }
}

TEST_F(Tar, AFileForASampleThatWasGivenIsNamedWithBothPlaces) {
  // The places: 0, 1024, 2048, 3072 of the late one, 4096.
  const std::string archive = member("./1.a", "x") + member("2.a", "y") + member("3.a", "z") + member("1.a", "late") +
                              member(".//1.b", "late") + member("4.a", "w") + kEnd;
  EXPECT_EQ(samples(archive), (Texts{"./1: a=x", "2: a=y", "3: a=z", "!", "4: a=w"}));
  const auto files = data::tar_samples({write("a.tar", archive)});
  std::vector<data::RecordPlace> places;
  const Texts whole = samples(*files, {}, &places);
  for (std::size_t i = 1; i < whole.size(); ++i) {
    EXPECT_EQ(samples(*files, places[i]), Texts(whole.begin() + static_cast<std::ptrdiff_t>(i), whole.end()))
        << "a reader that begins in the middle knows what was given before";
  }
  const auto reader = files->open(0, places[2]);
  std::string record;
  ASSERT_TRUE(reader->next(record));
  expect_error<DataError>([&] { reader->next(record); }, "LS-DATA-RECORD",
                          {quoted("a.tar"), "record 3", "'1.a'", "byte 3072", "byte 0"});
  ASSERT_TRUE(reader->next(record));
  EXPECT_EQ(data::parse_tar_sample(record).key, "4");
  expect_error<DataError>(
      [&] {
        files->open(0, {0, 2, 1024})->next(record);
      },
      "LS-DATA-FILE", {"record 2", "byte 1024"});
  expect_error<DataError>([&] { files->open(0, {0, 9, 9216})->next(record); }, "LS-DATA-FILE", {"record 9"});
}

TEST_F(Tar, SamplesWhoseFilesAreMixedAreCollectedWithinAWindow) {
  const std::string archive = member("1.a", "1") + member("2.a", "2") + member("3.a", "3") + member("2.b", "two") +
                              member("1.b", "one") + member("4.a", "4") + member("4.b", "four") +
                              member("3.b", "three") + kEnd;
  const Texts all{"1: a=1 b=one", "2: a=2 b=two", "3: a=3 b=three", "4: a=4 b=four"};
  const std::string packed = gzip_member(archive);
  for (const std::string& bytes : {archive, packed}) {
    const auto files = data::tar_samples({write("a.tar", bytes)}, {.window = 3});
    std::vector<data::RecordPlace> places;
    EXPECT_EQ(samples(*files, {}, &places), all);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(samples(*files, places[i]), Texts(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()));
  }
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.window = 100})), all);
  // "1" was given when "3" came.
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.window = 2, .fields = Texts{"a"}})),
            (Texts{"1: a=1", "2: a=2 b=two", "3: a=3", "!", "4: a=4 b=four", "!"}));
  expect_error<UsageError>([&] { data::tar_samples({path("a.tar")}, {.window = 0}); }, "LS-OPTION", {".window of 0"});
}

TEST_F(Tar, ASampleWithoutAFieldOfTheOthersIsNamedWithItsPlace) {
  const auto with = [](const std::string& key) { return member(key + ".a", "x") + member(key + ".b", "y"); };
  const std::string tail = with("7") + with("8") + kEnd;
  EXPECT_EQ(samples(with("1") + member("2.a", "x") + tail), (Texts{"1: a=x b=y", "!", "7: a=x b=y", "8: a=x b=y"}));
  EXPECT_EQ(samples(member("1.b", "x") + tail), (Texts{"!", "7: a=x b=y", "8: a=x b=y"})) << "the first of all";
  expect_damaged_record(with("1") + member("2.a", "x") + tail, {"record 1", "'2'", "byte 2048", "'b'"});
  // A field that only a later one has.
  std::string late;
  for (int i = 10; i < 20; ++i) late += with(std::to_string(i));
  expect_damaged_record(late + with("20") + member("20.c", "z") + tail, {"record 10", "'20'", "'c'", "byte 22528"});
  // Of all archives, the first one says it.
  const auto two = data::tar_samples({write("1.tar", with("1") + kEnd), write("2.tar", member("2.a", "x") + kEnd)});
  std::string record;
  expect_error<DataError>([&] { two->open(1, {})->next(record); }, "LS-DATA-RECORD",
                          {quoted("2.tar"), "'2'", "'b'", quoted("1.tar")});
  const auto empty_first = data::tar_samples({write("0.tar", kEnd), path("1.tar"), path("2.tar")});
  expect_error<DataError>([&] { empty_first->open(2, {})->next(record); }, "LS-DATA-RECORD", {quoted("1.tar")});
  // What each must have.
  const std::string mixed = with("1") + member("2.a", "x") + member("3.b", "y") + kEnd;
  EXPECT_EQ(samples(*data::tar_samples({write("a.tar", mixed)}, {.fields = Texts{"a"}})),
            (Texts{"1: a=x b=y", "2: a=x", "!"}));
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.fields = Texts{}})).size(), 3u);
  EXPECT_EQ(samples(*data::tar_samples({path("a.tar")}, {.fields = Texts{"c"}})), (Texts{"!", "!", "!"}));
  expect_error<UsageError>([&] { data::tar_samples({path("a.tar")}, {.fields = Texts{"JPG"}}); }, "LS-OPTION",
                           {"'JPG'"});
  expect_error<UsageError>([&] { data::lines({path("a.tar")}, {.window = 2}); }, "LS-OPTION", {".window"});
}

TEST_F(Tar, WhatLiesBesideDataIsPassedOver) {
  EXPECT_EQ(samples(member("._1.a", "fork") + member("1.a", "x") + member("d/._1.a", "fork") +
                    member("__MACOSX/d/1.a", "fork") + member(".git/2.a", "x") + member("Thumbs.db", "x") +
                    member("d/@eaDir/1.a", "x") + member("1.a~", "x") + member("1.lock", "") +
                    member(".DS_Store", "x") + member("2.a", "y") + kEnd),
            (Texts{"1: a=x", "2: a=y"}));
}

TEST_F(Tar, WholeSamplesComeBeforeACut) {
  std::string archive;
  for (const char* key : {"1", "2", "3", "4"})
    archive += member(std::string(key) + ".a", "x") + member(std::string(key) + ".b", "y");
  archive += kEnd;
  const Texts all{"1: a=x b=y", "2: a=x b=y", "3: a=x b=y", "4: a=x b=y"};
  for (std::size_t size = 0; size < archive.size() - 512; size += 128) {
    Texts expected(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(size / 2048, 4)));
    if (size / 2048 == 1 && size % 2048 < 512)
      expected.pop_back();  // with one sample nobody knows what a whole one has
    expected.emplace_back("!");
    EXPECT_EQ(samples(archive.substr(0, size)), expected) << "of " << size << " bytes";
  }
  const std::string packed = gzip_member(archive);
  const auto reader = data::tar_samples({write("a.tar", packed + "more")})->open(0, {});
  std::string record;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(reader->next(record));
  expect_error<DataError>([&] { reader->next(record); }, "LS-DATA-FILE",
                          {quoted("a.tar"), "byte " + std::to_string(packed.size()), "record 4"});
  EXPECT_FALSE(reader->next(record));
}

TEST_F(Tar, ASizeInAHeaderTakesNoMemory) {
  std::string archive = member("1.a", "x");
  std::snprintf(archive.data() + 124, 12, "77777777777");
  std::memset(archive.data() + 148, ' ', 8);
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(archive[i]);
  std::snprintf(archive.data() + 148, 8, "%06o", sum);
  EXPECT_EQ(samples(*data::tar_samples({write("a.tar", archive)}, {.max_bytes = INT64_MAX})), Texts{"!"});
}

TEST(TarSample, IsTakenApartAsItWasPutTogether) {
  const data::TarSample sample{"key", {{"a", "1"}, {"", std::string(3, '\0')}}};
  const data::TarSample again = data::parse_tar_sample(data::make_tar_sample(sample));
  EXPECT_EQ(again.key, "key");
  EXPECT_EQ(again.fields, sample.fields);
  const std::string record = data::make_tar_sample(sample);
  expect_error<DataError>([&] { data::parse_tar_sample(record.substr(0, record.size() - 1)); }, "LS-DATA-RECORD");
  expect_error<DataError>([&] { data::parse_tar_sample(""); }, "LS-DATA-RECORD");
}

}  // namespace
}  // namespace lockstep
