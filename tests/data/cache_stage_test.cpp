// Samples that are kept in memory or in a file.
#include "lockstep/data/stages/stage.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "lockstep/data/stages/cache_file.h"
#include "tests/data/full_disk.h"
#include "tests/data/tens.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::FullDisk;
using testing::inputs_of;
using testing::Numbers;
using testing::tens;
using testing::Warnings;

/// Counts how often each sample is read.
class Counting final : public data::Source {
 public:
  int64_t size() const override { return 6; }
  Batch read(std::span<const int64_t> ids) const override {
    reads += static_cast<int64_t>(ids.size());
    return tens(6).read(ids);
  }
  std::string describe() const override { return "a source that counts"; }
  uint64_t digest() const override { return digest_of_it; }
  mutable std::atomic<int64_t> reads = 0;
  uint64_t digest_of_it = 5;
};

TEST(Cache, ReadsEachSampleOnce) {
  const auto source = std::make_shared<Counting>();
  const Dataset cached = Dataset(source).cache();
  EXPECT_EQ(inputs_of(cached.take(2)), (Numbers{0, 1}));
  EXPECT_EQ(inputs_of(cached), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(inputs_of(cached.shard(2, 1)), (Numbers{1, 3, 5}));
  EXPECT_EQ(source->reads, 6);
}

TEST(Cache, IsNotChangedByWorkInPlace) {
  for (const int64_t threads : {1, 2}) {
    const Dataset cached = tens(4).cache();
    const Dataset doubled = cached.map(
        [](Batch b) {
          b.input.mul_(2);
          return b;
        },
        {.threads = threads});
    for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(inputs_of(doubled), (Numbers{0, 2, 4, 6})) << threads;
    for (int epoch = 0; epoch < 2; ++epoch) {
      Batch one = cached.read(Numbers{3});
      EXPECT_EQ(one.input.item<float>(), 3);
      one.input.add_(100);
      cached.read_all().input.add_(100);
    }
    EXPECT_EQ(inputs_of(cached), (Numbers{0, 1, 2, 3}));
  }
}

class CacheFile : public ::testing::Test {
 protected:
  CacheFile() { std::filesystem::remove(path_); }
  ~CacheFile() override { std::filesystem::remove(path_); }
  const std::string path_ = ::testing::TempDir() + "/lockstep_cache_" + std::to_string(getpid());
};

TEST_F(CacheFile, ServesTheNextProcess) {
  const auto source = std::make_shared<Counting>();
  EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 6);
  const Batch again = Dataset(source).cache(path_).read(Numbers{5, 1});
  EXPECT_TRUE(torch::equal(again.target, torch::tensor({50, 10})));
  EXPECT_EQ(source->reads, 6);
}

TEST_F(CacheFile, DropsWhatIsCutOffOrDamaged) {
  const auto source = std::make_shared<Counting>();
  Dataset(source).cache(path_).read_all();
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 3);
  EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 7) << "the last one was read again";
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(24 + 24 + 60);  // in the first sample's bytes
    file.put('\x55');
  }
  EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
}

TEST_F(CacheFile, OfAFullDiskKeepsWhatFitsAndTheOthersAreReadEachTime) {
  const Numbers all{0, 1, 2, 3, 4, 5};
  { Dataset(std::make_shared<Counting>()).cache(path_).read_all(); }
  const auto whole = std::filesystem::file_size(path_);
  // A disk that is full within the head of the file, before the first sample, within a sample's bytes and within the
  // head of the last one.
  for (const auto& [size, kept] : std::vector<std::pair<uintmax_t, int64_t>>{
           {10, 0}, {24, 0}, {24 + (whole - 24) / 2 - 3, 2}, {24 + (whole - 24) / 6 * 5 + 8, 5}, {whole - 1, 5}}) {
    std::filesystem::remove(path_);
    const auto source = std::make_shared<Counting>();
    {
      const Warnings warnings;
      const FullDisk disk(size);
      const Dataset cached = Dataset(source).cache(path_);
      EXPECT_EQ(inputs_of(cached), all) << size;
      EXPECT_EQ(source->reads, 6);
      EXPECT_EQ(inputs_of(cached), all) << size;
      EXPECT_EQ(source->reads, 6 + 6 - kept) << "what does not fit is read again, of " << size;
      ASSERT_EQ(warnings.texts.size(), 1u) << "it is said once";
      EXPECT_NE(warnings.texts[0].find(path_), std::string::npos);
      EXPECT_LE(std::filesystem::file_size(path_), size);
    }
    source->reads = 0;
    EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), all) << "with space again, from " << size;
    EXPECT_EQ(source->reads, 6 - kept);
    EXPECT_EQ(std::filesystem::file_size(path_), whole);
    EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), all);
    EXPECT_EQ(source->reads, 6 - kept) << "now it is whole";
  }
}

TEST_F(CacheFile, RefusesOtherDataAndIsUsedByOneAtATime) {
  const auto source = std::make_shared<Counting>();
  const Dataset holds = Dataset(source).cache(path_);
  holds.read_all();
  const Dataset beside = Dataset(source).cache(path_);
  EXPECT_EQ(beside.read_all().size(), 6);
  EXPECT_EQ(source->reads, 12) << "the second one reads without the file";
  expect_error<DataError>([&] { Dataset(source).cache("/no/such/folder/file"); }, "LS-DATA-FILE");
}

TEST_F(CacheFile, ThatAnotherReaderUsesFixesRandomWorkAllTheSame) {
  const Dataset shuffled = Dataset(std::make_shared<Counting>()).shuffle(3);
  const Dataset holds = shuffled.cache(path_);
  const Dataset beside = shuffled.cache(path_);
  EXPECT_EQ(beside.source()->digest(), holds.source()->digest());
  EXPECT_EQ(inputs_of(beside.at_epoch(0, 4)), inputs_of(holds.at_epoch(0, 4)));
}

TEST_F(CacheFile, OfAnotherStageIsRefused) {
  const Dataset ten = tens(10);
  const auto even = [](const Batch& b) { return b.input.item<int64_t>() % 2 == 0; };
  const auto odd = [](const Batch& b) { return b.input.item<int64_t>() % 2 == 1; };
  const auto same = [](Batch b) { return b; };
  const std::vector<std::pair<Dataset, Dataset>> pairs{{data::slice(ten, 0, 5), data::slice(ten, 5, 10)},
                                                       {ten.take(4), ten.skip(6)},
                                                       {ten.shard(2, 0), ten.shard(2, 1)},
                                                       {ten.shuffle(1), ten.shuffle(2)},
                                                       {ten.shuffle(1), ten},
                                                       {ten.filter(even), ten.filter(odd)},
                                                       {ten.batch(4), ten.batch(5, true).concatenate(ten.batch(10))},
                                                       {ten.padded_batch(5), ten.padded_batch(5, {.value = 1})},
                                                       {ten.batch(5), ten.padded_batch(5)},
                                                       {ten.repeat(2), ten.concatenate(ten)},
                                                       {ten.zip(ten, "a"), ten.zip(ten, "b")},
                                                       {ten.zip(ten.shuffle(1)), ten.zip(ten.shuffle(2))},
                                                       {ten.map(same, {.name = "a"}), ten.map(same, {.name = "b"})},
                                                       {ten.map_rows(same, "a"), ten.map_rows(same, "b")}};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [one, other] = pairs[i];
    EXPECT_EQ(one.size(), other.size()) << i;
    std::filesystem::remove(path_);
    { one.cache(path_); }
    { EXPECT_EQ(one.cache(path_).size(), one.size()) << i; }
    expect_error<DataError>([&, &second = other] { second.cache(path_); }, "LS-DATA-CHANGED", {path_});
    EXPECT_EQ(one.cache().source()->digest(), one.source()->digest());
  }
  const auto unknown = std::make_shared<Counting>();
  unknown->digest_of_it = 0;
  const Dataset nothing_known(unknown);
  for (const Dataset& stage : {nothing_known.take(3), nothing_known.shuffle(1), nothing_known.batch(2),
                               nothing_known.map(same), nothing_known.repeat(2), nothing_known.zip(nothing_known),
                               nothing_known.concatenate(nothing_known), nothing_known.shard(2, 1)})
    EXPECT_EQ(stage.source()->digest(), 0u);
}

TEST_F(CacheFile, SaysWhyAPathCannotBeUsed) {
  const auto use = [](const std::string& path) {
    return [path] { Dataset(std::make_shared<Counting>()).cache(path); };
  };
  const std::string missing = path_ + "_missing";
  expect_error<DataError>(use(missing + "/a"), "LS-DATA-FILE", {"no folder '" + missing + "'"});
  std::filesystem::create_directory(missing);
  expect_error<DataError>(use(missing), "LS-DATA-FILE", {"'" + missing + "'", "plain file"});
  if (geteuid() != 0) {  // root may write everywhere
    std::filesystem::permissions(missing, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    expect_error<DataError>(use(missing + "/a"), "LS-DATA-FILE", {"'" + missing + "' may not be read or written"});
  }
  std::filesystem::remove_all(missing);
}

TEST_F(CacheFile, OfOtherDataIsRefused) {
  const auto source = std::make_shared<Counting>();
  Dataset(source).cache(path_).read_all();
  source->digest_of_it = 6;
  expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_});
  std::ofstream(path_) << "something else that is longer than the head";
  expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_});
}

}  // namespace
}  // namespace lockstep
