// The file of a cache: whose it is, and that nothing is believed of it without proof.
#include "lockstep/data/stages/element_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/core/bytes.h"
#include "lockstep/data/sources/sources.h"
#include "lockstep/data/stream.h"
#include "tests/data/records_in_memory.h"
#include "tests/data/stages/cache_path.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::bytes_in_file;
using testing::expect_error;
using testing::FullDisk;
using testing::parse_number;
using testing::targets_of;
using testing::up_to;
using testing::Warnings;
using Numbers = std::vector<int64_t>;
using StreamCacheFile = testing::WithCachePath;

TEST_F(StreamCacheFile, LeavesAFileAloneThatIsInItsWay) {
  const std::string text = "notes of the user's own";
  std::ofstream(path_ + ".part") << text;
  const Stream records = testing::numbers_in({4});
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-FILE", {path_ + ".part"});
  EXPECT_EQ(fs::file_size(path_ + ".part"), text.size());
  fs::rename(path_ + ".part", path_ + ".notes");
  fs::create_symlink(path_ + ".notes", path_ + ".part");
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-FILE", {path_ + ".part"});
  EXPECT_EQ(fs::file_size(path_ + ".notes"), text.size());
  fs::remove(path_ + ".notes");
}

TEST_F(StreamCacheFile, OfAFileThatSomebodyRemovesIsNotPutInPlaceOfAnother) {
  const auto files = testing::files_of({4});
  const Stream one = data::from_records(files, parse_number).cache(path_);
  const Stream other = data::from_records(files, parse_number).cache(path_);
  Batch element;
  const auto first = one.open();
  ASSERT_TRUE(first->next(element));
  fs::remove(path_ + ".part");
  const auto second = other.open();
  ASSERT_TRUE(second->next(element));
  const Warnings warnings;
  while (first->next(element)) continue;
  EXPECT_FALSE(fs::exists(path_)) << "the second one's is half written";
  EXPECT_EQ(warnings.texts.size(), 1u);
  while (second->next(element)) continue;
  EXPECT_EQ(targets_of(other.read_all()), up_to(4));
  EXPECT_EQ(files->read, 8);
}

TEST_F(StreamCacheFile, IsNotTouchedByAForkedChildNorByAnotherFolder) {
  const auto files = testing::files_of({4});
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(path_).parent_path());
  const Stream cached = data::from_records(files, parse_number).cache(fs::path(path_).filename().string());
  auto reader = cached.open();
  Batch element;
  ASSERT_TRUE(reader->next(element));
  const pid_t child = fork();
  if (child == 0) {
    reader->next(element);
    reader.reset();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  fs::current_path("/");
  while (reader->next(element)) continue;
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_EQ(targets_of(cached.read_all()), up_to(4));
  EXPECT_EQ(files->read, 4);
}

TEST_F(StreamCacheFile, KeepsALinkAndReplacesItsTarget) {
  const std::string target = path_ + "_target";
  const Stream records = testing::numbers_in({4});
  records.cache(target).read_all();
  fs::create_symlink(target, path_);
  EXPECT_EQ(targets_of(records.cache(path_).read_all()), up_to(4));
  EXPECT_TRUE(fs::is_symlink(path_));
  fs::remove(target);
}

TEST_F(StreamCacheFile, OfAFullDiskIsLeftOutAndThatIsSaidOnce) {
  const auto files = testing::files_of({6});
  { data::from_records(files, parse_number).cache(path_).read_all(); }
  const auto size = fs::file_size(path_);
  for (const uintmax_t full : {uintmax_t{4}, uintmax_t{16}, uintmax_t{30}, size / 2, size - 30, size - 1}) {
    remove();
    const Warnings warnings;
    const Stream cached = [&] {
      const FullDisk disk(full);
      const Stream made = data::from_records(files, parse_number).cache(path_);
      EXPECT_EQ(targets_of(made.read_all()), up_to(6)) << full;
      EXPECT_EQ(targets_of(made.read_all()), up_to(6)) << full;
      return made;
    }();
    ASSERT_EQ(warnings.texts.size(), 1u) << full;
    EXPECT_NE(warnings.texts[0].find(path_), std::string::npos);
    EXPECT_FALSE(fs::exists(path_)) << full;
    EXPECT_FALSE(fs::exists(path_ + ".part")) << full;
    EXPECT_EQ(targets_of(cached.read_all()), up_to(6)) << full;
  }
}

TEST_F(StreamCacheFile, RefusesAnotherStreamsFile) {
  const Stream records = testing::numbers_in({6});
  const auto same = [](Batch b) { return b; };
  const std::vector<Stream> streams{records,
                                    records.map(same, {.name = "a"}),
                                    records.map(same, {.name = "b"}),
                                    records.shuffle(3),
                                    records.shuffle(3, 1),
                                    records.shuffle(4),
                                    records.batch(4),
                                    records.batch(4, true),
                                    records.padded_batch(4),
                                    records.padded_batch(4, {.value = 1}),
                                    records.zip(records, "a"),
                                    records.zip(records, "b"),
                                    records.zip(records, "a").zip(records, "a"),
                                    records.zip(records.zip(records, "a"), "a"),
                                    testing::numbers_in({6}, {.cycle_length = 2}),
                                    testing::numbers_in({6}, {.block_length = 2}),
                                    records.take(5),
                                    records.skip(5),
                                    records.shard(2, 0),
                                    records.shard(2, 1),
                                    records.repeat(2),
                                    data::interleave({records.take(2), records}),
                                    data::interleave({records.take(3), records}),
                                    data::interleave({records, records}, {.cycle_length = 2}),
                                    records.take(2).concatenate(records),
                                    records.concatenate(records).take(2),
                                    records.repeat(2).concatenate(records),
                                    records.concatenate(records).repeat(2),
                                    records.batch(3).padded_batch(2),
                                    records.padded_batch(3).batch(2)};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    remove();
    streams[i].cache(path_).read_all();
    for (std::size_t k = 0; k < streams.size(); ++k) {
      if (i == k) {
        EXPECT_NO_THROW(streams[k].cache(path_).read_all());
      } else {
        expect_error<DataError>([&] { streams[k].cache(path_); }, "LS-DATA-CHANGED", {path_, "another stream"});
      }
    }
  }
  std::ofstream(path_) << "something else that is longer than the head";
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-CHANGED", {path_, "something else"});
  std::ofstream(path_) << "short";
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-CHANGED", {path_});
}

TEST_F(StreamCacheFile, ThatIsDamagedAnywhereIsAnErrorAndNeverOtherElements) {
  const Stream records = testing::numbers_in({3});
  records.cache(path_).read_all();
  std::string whole(fs::file_size(path_), '\0');
  std::ifstream(path_, std::ios::binary).read(whole.data(), static_cast<std::streamsize>(whole.size()));
  const auto write = [&](const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; };
  const auto read = [&](const std::string& bytes) {
    write(bytes);
    try {
      return targets_of(records.cache(path_).read_all());
    } catch (const DataError& error) {
      EXPECT_TRUE(error.code() == "LS-DATA-FILE" || error.code() == "LS-DATA-CHANGED") << error.what();
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos);
      return Numbers{-1};
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      EXPECT_EQ(read(damaged), Numbers{-1}) << "byte " << i;
    }
    EXPECT_EQ(read(whole.substr(0, i)), Numbers{-1}) << "the first " << i << " bytes";
  }
  EXPECT_EQ(read(whole), up_to(3));
  // Behind an element that is damaged a reader goes on.
  std::string damaged = whole;
  damaged[24 + 24 + 8] = 'x';
  write(damaged);
  const auto reader = records.cache(path_).open();
  Batch element;
  expect_error<DataError>([&] { reader->next(element); }, "LS-DATA-FILE", {path_, "element 0"});
  ASSERT_TRUE(reader->next(element));
  EXPECT_EQ(element.target.item<int64_t>(), 1);
}

template <class... Numbers>
std::string plain(const Numbers&... numbers) {
  std::string bytes;
  (internal::ByteWriter(bytes).put(numbers), ...);
  return bytes;
}

TEST_F(StreamCacheFile, OfTheOlderFormatIsWrittenAnewAndAnotherStreamsIsRefused) {
  const auto files = testing::files_of({4});
  const Stream records = data::from_records(files, parse_number);
  records.cache(path_).read_all();
  uint64_t digest = 0;
  const std::string now = bytes_in_file(path_);
  std::memcpy(&digest, now.data() + 8, sizeof digest);
  // A head, an element of 5 bytes and its checksum, its place, and the end, as they were written before.
  const auto older = [](uint64_t of) {
    return "SLSTRMC1" + plain(of, uint64_t{5}, uint64_t{9}) + "bytes" + plain(uint64_t{16}, uint64_t{1}, uint64_t{7}) +
           "SLSCEND1";
  };
  std::ofstream(path_, std::ios::binary) << older(digest);
  std::ofstream(path_ + ".part", std::ios::binary) << older(digest + 1);
  files->read = 0;
  const Stream cached = records.cache(path_);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(targets_of(cached.read_all()), up_to(4));
  EXPECT_EQ(files->read, 4);
  EXPECT_EQ(bytes_in_file(path_), now);
  std::ofstream(path_, std::ios::binary) << older(digest + 1);
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-CHANGED", {path_, "another stream"});
}

TEST_F(StreamCacheFile, OfADataSetAndOfAStreamAreRefusedByEachOther) {
  const auto counted = [] { return data::from_tensors(at::arange(4), at::arange(4)); };
  counted().cache(path_).read_all();
  const std::string whole = bytes_in_file(path_);
  const Stream records = testing::numbers_in({4});
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-CHANGED", {path_, "samples of a data set"});
  remove();
  records.cache(path_).read_all();
  expect_error<DataError>([&] { counted().cache(path_); }, "LS-DATA-CHANGED", {path_, "elements of a stream"});
  // A data set's file that is not whole yet is not taken for what a stream has begun.
  remove();
  const std::string begun = path_ + ".part";
  counted().take(4).cache(begun).read(std::vector<int64_t>{1});
  const auto size = fs::file_size(begun);
  expect_error<DataError>([&] { records.cache(path_); }, "LS-DATA-FILE", {begun});
  EXPECT_EQ(fs::file_size(begun), size);
}

TEST_F(StreamCacheFile, SaysWhyAPathCannotBeUsed) {
  const Stream records = testing::numbers_in({2});
  const std::string missing = path_ + "_missing";
  expect_error<DataError>([&] { records.cache(missing + "/a"); }, "LS-DATA-FILE", {"no folder '" + missing + "'"});
  fs::create_directory(missing);
  expect_error<DataError>([&] { records.cache(missing); }, "LS-DATA-FILE", {"'" + missing + "'", "plain file"});
  fs::remove_all(missing);
}

TEST_F(StreamCacheFile, OfTwoStreamsOfAProcessIsRefusedAtOnce) {
  const Stream records = testing::numbers_in({4});
  const Stream one = records.cache(path_);
  expect_error<DataError>([&] { one.map([](Batch b) { return b; }, {.name = "same"}).cache(path_); }, "LS-DATA-CHANGED",
                          {path_, "another stream"});
}

}  // namespace
}  // namespace lockstep
