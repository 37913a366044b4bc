// Samples that are kept in memory or in a file.
#include "lockstep/data/stages/stage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/bytes.h"
#include "tests/data/stages/cache_path.h"
#include "tests/data/tens.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"

namespace lockstep {
namespace {

using testing::bytes_in_file;
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

/// What stands behind the records of six samples: the places of all, as a record, and the end.
constexpr uintmax_t kEndSize = 24 + 6 * 8 + 16;

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
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - kEndSize - 3);
  EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 7) << "the last one was read again";
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(24 + 24 + 60);  // in the first sample's bytes
    file.put('\x55');
  }
  const Warnings warnings;
  source->reads = 0;
  const Dataset damaged = Dataset(source).cache(path_);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(inputs_of(damaged), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 2) << "a whole file stays as it is";
  ASSERT_EQ(warnings.texts.size(), 1u) << "it is said once";
  EXPECT_NE(warnings.texts[0].find(path_), std::string::npos);
}

TEST_F(CacheFile, ThatIsCutOrDamagedAtAnyByteNeverGivesOtherSamplesAndIsMadeWhole) {
  const Dataset two = tens(2);
  { two.cache(path_).read_all(); }
  const std::string whole = bytes_in_file(path_);
  const auto write = [&](const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    write(whole.substr(0, i));
    EXPECT_EQ(inputs_of(two.cache(path_)), (Numbers{0, 1})) << "the first " << i << " bytes";
    EXPECT_EQ(bytes_in_file(path_).size(), whole.size()) << "the first " << i << " bytes";
    EXPECT_EQ(inputs_of(two.cache(path_)), (Numbers{0, 1})) << "the first " << i << " bytes";
  }
  const Warnings warnings;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ '\x01');
    write(damaged);
    if (i < 24) {
      expect_error<DataError>([&] { two.cache(path_); }, "LS-DATA-CHANGED", {path_});
      EXPECT_EQ(bytes_in_file(path_), damaged);
    } else {
      EXPECT_EQ(inputs_of(two.cache(path_)), (Numbers{0, 1})) << "byte " << i;
    }
  }
}

TEST_F(CacheFile, IsMadeWholeByThreadsThatReadInDifferentOrders) {
  const auto source = std::make_shared<Counting>();
  const Dataset cached = Dataset(source).cache(path_);
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 12; ++i) {
        const int64_t id = (i * (t % 2 == 0 ? 1 : 5) + t) % 6;
        if (cached.read(Numbers{id}).target.item<int64_t>() != 10 * id) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const auto size = std::filesystem::file_size(path_);
  source->reads = 0;
  EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 0);
  std::filesystem::remove(path_);
  Dataset(source).cache(path_).read_all();
  EXPECT_EQ(std::filesystem::file_size(path_), size) << "each sample is there once";
}

TEST_F(CacheFile, IsNotTouchedByAForkedChild) {
  const auto source = std::make_shared<Counting>();
  const Dataset cached = Dataset(source).cache(path_);
  cached.read(Numbers{4});
  const std::string before = bytes_in_file(path_);
  const pid_t child = fork();
  if (child == 0) _exit(cached.read(Numbers{4, 1}).size() == 2 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes_in_file(path_), before);
  EXPECT_EQ(inputs_of(cached), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 6);
}

TEST_F(CacheFile, OfTheOlderFormatIsMadeAnewAndOfOtherDataIsRefused) {
  const auto older = [](uint64_t digest) {
    std::string bytes = "SLCACHE1";
    internal::ByteWriter writer(bytes);
    for (const uint64_t number : {digest, uint64_t{6}, uint64_t{2}, uint64_t{5}, uint64_t{7}}) writer.put(number);
    return bytes += "bytes";
  };
  const auto source = std::make_shared<Counting>();
  std::ofstream(path_, std::ios::binary) << older(source->digest_of_it + 1);
  expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_, "other data"});
  EXPECT_EQ(bytes_in_file(path_), older(source->digest_of_it + 1));
  std::string of_a_stream = older(source->digest_of_it);
  of_a_stream.replace(0, 8, "SLSTRMC1");
  std::ofstream(path_, std::ios::binary) << of_a_stream;
  expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_, "elements of a stream"});
  std::ofstream(path_, std::ios::binary) << older(source->digest_of_it);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(inputs_of(Dataset(source).cache(path_)), (Numbers{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(source->reads, 6);
  }
}

/// Rows of a unit matrix, as sparse tensors.
class SparseRows final : public data::Source {
 public:
  int64_t size() const override { return 6; }
  Batch read(std::span<const int64_t> ids) const override {
    const at::Tensor rows = at::tensor(std::vector<int64_t>(ids.begin(), ids.end()));
    return {.input = at::eye(6).index_select(0, rows).to_sparse(), .target = rows};
  }
  std::string describe() const override { return "sparse rows"; }
};

TEST_F(CacheFile, OfSparseSamplesKeepsNothingAndGivesThem) {
  for (const std::string& path : {std::string(), path_}) {
    const Dataset cached = Dataset(std::make_shared<SparseRows>()).cache(path);
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_TRUE(
          at::equal(cached.read(Numbers{4, 1}).input.to_dense(), at::eye(6).index_select(0, at::tensor({4, 1}))))
          << path;
      EXPECT_TRUE(at::equal(cached.read(Numbers{2}).input.to_dense(), at::eye(6).slice(0, 2, 3))) << path;
    }
  }
}

TEST_F(CacheFile, GivesTensorsInTheSameFormInEachPass) {
  const at::Tensor expanded = at::rand({3}).expand({3, 3});
  const at::Tensor conjugate = at::rand({3, 2}, at::kComplexFloat).conj();
  const Dataset pairs = data::from_tensors(expanded, conjugate);
  const Dataset graphs = data::from_tensors(at::rand({3, 2}).requires_grad_(), at::arange(6).view({3, 2}).select(1, 0));
  for (const Dataset& all : {pairs, graphs}) {
    for (const std::string& path : {std::string(), path_}) {
      std::filesystem::remove(path_);
      const Dataset cached = all.cache(path);
      for (const Numbers& ids : {Numbers{0}, Numbers{1, 2}}) {
        const Batch first = cached.read(ids);
        const Batch second = cached.read(ids);
        for (const auto& [one, other] :
             {std::pair(first.input, second.input), std::pair(first.target, second.target)}) {
          EXPECT_EQ(one.strides(), other.strides()) << path;
          EXPECT_EQ(one.is_conj(), other.is_conj()) << path;
          EXPECT_EQ(one.requires_grad(), other.requires_grad()) << path;
          EXPECT_TRUE(at::equal(one, other)) << path;
        }
      }
    }
  }
}

TEST_F(CacheFile, GivesTensorsOfTheSameStridesInEachPass) {
  const auto images = at::rand({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const Dataset pairs = data::from_tensors(images, at::rand({2, 4}).t());
  for (const std::string& path : {path_, std::string()}) {
    const Dataset cached = pairs.cache(path);
    const Batch first = cached.read_all();
    const Batch second = cached.read_all();
    EXPECT_EQ(first.input.strides(), second.input.strides()) << path;
    EXPECT_EQ(first.target.strides(), second.target.strides()) << path;
    EXPECT_TRUE(at::equal(second.input, images));
  }
}

TEST_F(CacheFile, OfAFullDiskKeepsWhatFitsAndTheOthersAreReadEachTime) {
  const Numbers all{0, 1, 2, 3, 4, 5};
  { Dataset(std::make_shared<Counting>()).cache(path_).read_all(); }
  const auto whole = std::filesystem::file_size(path_);
  const auto records = whole - kEndSize;
  // A disk that is full within the head of the file, before the first sample, within a sample's bytes, within the head
  // of the last one, within its bytes and within the end.
  for (const auto& [size, kept] : std::vector<std::pair<uintmax_t, int64_t>>{{10, 0},
                                                                             {24, 0},
                                                                             {24 + (records - 24) / 2 - 3, 2},
                                                                             {24 + (records - 24) / 6 * 5 + 8, 5},
                                                                             {records - 1, 5},
                                                                             {records, 6},
                                                                             {whole - 1, 6}}) {
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

TEST_F(CacheFile, IsWrittenByOneReaderAtATimeAndReadByAllOnceItIsWhole) {
  const auto source = std::make_shared<Counting>();
  const Dataset holds = Dataset(source).cache(path_);
  holds.take(5).read_all();
  const Dataset beside = Dataset(source).cache(path_);
  EXPECT_EQ(beside.read_all().size(), 6);
  EXPECT_EQ(source->reads, 5 + 6) << "the second one reads without the file";
  source->digest_of_it = 6;
  expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_});
  source->digest_of_it = 5;
  holds.read_all();
  source->reads = 0;
  const Dataset one = Dataset(source).cache(path_);
  const Dataset other = Dataset(source).cache(path_);
  for (const Dataset& each : {one, other, holds}) EXPECT_EQ(inputs_of(each), (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->reads, 0);
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
  for (const std::string text : {"something else that is longer than the head", "short"}) {
    std::ofstream(path_) << text;
    expect_error<DataError>([&] { Dataset(source).cache(path_); }, "LS-DATA-CHANGED", {path_, "something else"});
    EXPECT_EQ(bytes_in_file(path_), text);
  }
}

}  // namespace
}  // namespace lockstep
