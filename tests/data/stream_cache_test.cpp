// A stream's elements that are kept in a file.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/element_file.h"
#include "lockstep/data/stream.h"
#include "lockstep/strategy/mirrored.h"
#include "lockstep/strategy/one_device.h"
#include "tests/data/full_disk.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::FullDisk;
using testing::parse_number;
using testing::targets_of;
using testing::Warnings;
using Numbers = std::vector<int64_t>;

Numbers up_to(int64_t count) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class StreamCache : public ::testing::Test {
 protected:
  StreamCache() { remove(); }
  ~StreamCache() override { remove(); }
  void remove() const {
    fs::remove(path_);
    fs::remove(path_ + ".part");
  }
  const std::string path_ =
      (fs::canonical(fs::temp_directory_path()) / ("lockstep_stream_cache_" + std::to_string(getpid()))).string();
};

/// Elements with everything that a Batch of a stream has.
Stream rich(const std::shared_ptr<testing::RecordsInMemory>& files) {
  return data::from_records(files, [](const std::string& bytes, const data::RecordPlace& place) {
    Batch sample = parse_number(bytes, place);
    sample.input = torch::arange(12, torch::kDouble).view({1, 3, 4}).transpose(1, 2) + std::stoi(bytes);
    sample.more["boxes/left"] = torch::full({1, 2}, std::stoi(bytes), torch::kBFloat16);
    sample.more["flags"] = torch::full({1}, std::stoi(bytes) % 2 == 0, torch::kBool);
    sample.more["waves"] = torch::conj(torch::full({1, 2}, c10::complex<float>(1, 2), torch::kComplexFloat));
    sample.more["nothing"] = torch::empty({1, 0});
    return sample;
  });
}

void expect_same(const std::vector<Batch>& left, const std::vector<Batch>& right) {
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(torch::equal(left[i].input, right[i].input)) << i;
    EXPECT_TRUE(torch::equal(left[i].target, right[i].target)) << i;
    EXPECT_TRUE(torch::equal(left[i].ids, right[i].ids)) << i;
    ASSERT_EQ(left[i].more.size(), right[i].more.size());
    for (const auto& [name, tensor] : left[i].more) {
      EXPECT_EQ(tensor.dtype(), right[i].more.at(name).dtype());
      EXPECT_TRUE(torch::equal(tensor, right[i].more.at(name))) << name;
    }
  }
}

TEST_F(StreamCache, ServesLaterRunsWithTheSameElements) {
  const auto files = testing::files_of({3, 4});
  const auto plain = rich(files).read_all();
  files->read = 0;
  expect_same(rich(files).cache(path_).read_all(), plain);
  EXPECT_EQ(files->read, 7);
  const Stream again = rich(files).cache(path_);
  for (int epoch = 0; epoch < 2; ++epoch) expect_same(again.read_all(), plain);
  const auto groups = rich(files).batch(3).read_all();
  EXPECT_EQ(files->read, 14);
  expect_same(rich(files).cache(path_).batch(3).read_all(), groups);
  EXPECT_EQ(files->read, 14);
  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

TEST_F(StreamCache, IsServedToTheSameHandleInItsNextEpoch) {
  const auto files = testing::files_of({5});
  const Stream cached = data::from_records(files, parse_number).cache(path_);
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(targets_of(cached.read_all()), up_to(5));
  EXPECT_EQ(files->read, 5);
}

TEST_F(StreamCache, AppearsOnlyWhereItWasReadToTheEnd) {
  const auto files = testing::files_of({6});
  const Stream cached = data::from_records(files, parse_number).cache(path_);
  {
    const auto reader = cached.open();
    Batch element;
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(reader->next(element));
    EXPECT_TRUE(fs::exists(path_ + ".part"));
    EXPECT_FALSE(fs::exists(path_));
  }
  EXPECT_FALSE(fs::exists(path_ + ".part")) << "what was not finished is removed";
  // What a process leaves that was killed.
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = internal::ElementFileWriter::make(path_, 7);
    const bool added = writer && writer->add(parse_number("1", {}));
    _exit(added ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(path_ + ".part"));
  EXPECT_EQ(targets_of(cached.read_all()), up_to(6));
  EXPECT_TRUE(fs::exists(path_));
  files->read = 0;
  EXPECT_EQ(targets_of(cached.read_all()), up_to(6));
  EXPECT_EQ(files->read, 0);
}

TEST_F(StreamCache, LeavesAFileAloneThatIsInItsWay) {
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

TEST_F(StreamCache, OfAFileThatSomebodyRemovesIsNotPutInPlaceOfAnother) {
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

TEST_F(StreamCache, IsNotTouchedByAForkedChildNorByAnotherFolder) {
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

TEST_F(StreamCache, KeepsALinkAndReplacesItsTarget) {
  const std::string target = path_ + "_target";
  const Stream records = testing::numbers_in({4});
  records.cache(target).read_all();
  fs::create_symlink(target, path_);
  EXPECT_EQ(targets_of(records.cache(path_).read_all()), up_to(4));
  EXPECT_TRUE(fs::is_symlink(path_));
  fs::remove(target);
}

TEST_F(StreamCache, OfTwoStreamsOfAProcessIsRefusedAtOnce) {
  const Stream records = testing::numbers_in({4});
  const Stream one = records.cache(path_);
  expect_error<DataError>([&] { one.map([](Batch b) { return b; }, {.name = "same"}).cache(path_); }, "LS-DATA-CHANGED",
                          {path_, "another stream"});
}

TEST_F(StreamCache, GivesTensorsOfTheSameStridesInEachPass) {
  const auto parse = [](const std::string& bytes, const data::RecordPlace& place) {
    Batch sample = parse_number(bytes, place);
    sample.input = torch::rand({1, 3, 4, 4}).to(torch::kFloat, false, false, torch::MemoryFormat::ChannelsLast);
    return sample;
  };
  const Stream cached = data::from_records(testing::files_of({2}), parse).cache(path_);
  const auto first = cached.read_all();
  const auto second = cached.read_all();
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::equal(first[i].input, second[i].input));
    EXPECT_EQ(first[i].input.strides(), second[i].input.strides());
  }
}

TEST_F(StreamCache, IsWrittenByOneReaderAtATime) {
  const auto files = testing::files_of({4});
  const Stream one = data::from_records(files, parse_number).cache(path_);
  const Stream other = data::from_records(files, parse_number).cache(path_);
  const auto first = one.open();
  const auto second = other.open();
  std::vector<Batch> all;
  for (Batch a, b; first->next(a) && second->next(b);) {
    all.push_back(a);
    all.push_back(b);
  }
  EXPECT_EQ(targets_of(all), (Numbers{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(files->read, 8);
  EXPECT_EQ(targets_of(other.read_all()), up_to(4));
  EXPECT_EQ(files->read, 8) << "the other one reads what the first one has written";
}

TEST_F(StreamCache, ContinuesAtTheVeryNextElementWithAndWithoutTheFile) {
  const Stream records = testing::numbers_in({3, 0, 4}, {.cycle_length = 2});
  const auto whole = targets_of(records.read_all());
  const auto positions_of = [](const Stream& stream) {
    const auto reader = stream.open();
    std::vector<data::StreamPosition> positions{reader->position()};
    for (Batch element; reader->next(element);) positions.push_back(reader->position());
    return positions;
  };
  const auto without = positions_of(records.cache(path_));
  const auto with = positions_of(records.cache(path_));
  for (const bool there : {true, false}) {
    for (const auto* const positions : {&without, &with}) {
      ASSERT_EQ(positions->size(), whole.size() + 1);
      for (std::size_t stop = 0; stop < positions->size(); ++stop) {
        if (!there) remove();
        const auto reader = records.cache(path_).source()->open({}, (*positions)[stop]);
        Numbers left;
        for (Batch element; reader->next(element);) left.push_back(element.target.item<int64_t>());
        EXPECT_EQ(left, Numbers(whole.begin() + static_cast<std::ptrdiff_t>(stop), whole.end())) << stop;
      }
    }
  }
}

TEST_F(StreamCache, OfAFullDiskIsLeftOutAndThatIsSaidOnce) {
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

TEST_F(StreamCache, RefusesAnotherStreamsFile) {
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
                                    records.repeat(2)};
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

TEST_F(StreamCache, ThatIsDamagedAnywhereIsAnErrorAndNeverOtherElements) {
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
  damaged[16 + 16 + 8] = 'x';
  write(damaged);
  const auto reader = records.cache(path_).open();
  Batch element;
  expect_error<DataError>([&] { reader->next(element); }, "LS-DATA-FILE", {path_, "element 0"});
  ASSERT_TRUE(reader->next(element));
  EXPECT_EQ(element.target.item<int64_t>(), 1);
}

TEST_F(StreamCache, HasNoElementsWhereSomeWereLeftOut) {
  const auto files = std::make_shared<testing::RecordsInMemory>(
      std::vector<std::vector<std::string>>{{"0", "1", "!", "2"}, {"3", "4", "5", "6"}});
  const Stream cached = data::from_records(files, parse_number).cache(path_);
  const Warnings warnings;
  OneDeviceStrategy strategy;
  const auto data = strategy.distribute(cached, {.global_batch = 2, .on_error = OnError::kSkip});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    Numbers seen;
    for (const auto& step : data.epoch(epoch)) {
      const Numbers part = targets_of({step[ReplicaId(0)]});
      seen.insert(seen.end(), part.begin(), part.end());
    }
    EXPECT_EQ(seen, up_to(7));
    EXPECT_EQ(data.skipped(), epoch + 1) << "each epoch says that it was left out";
    EXPECT_FALSE(fs::exists(path_));
  }
}

/// A program's own source may give what the library's sources refuse.
class SparseElements final : public data::StreamSource {
 public:
  std::unique_ptr<data::StreamReader> open(const data::StreamPass& /*pass*/,
                                           const data::StreamPosition& /*position*/) const override {
    return std::make_unique<Reader>();
  }
  std::string describe() const override { return "sparse elements"; }

 private:
  class Reader final : public data::StreamReader {
   public:
    bool next(Batch& element) override {
      if (next_ == 4) return false;
      element = parse_number(std::to_string(next_++), {});
      element.more["sparse"] = torch::ones({1, 3}).to_sparse();
      return true;
    }
    data::StreamPosition position() const override { return {next_}; }

   private:
    int64_t next_ = 0;
  };
};

TEST_F(StreamCache, OfWhatCannotBeWrittenReadsTheStreamEachTime) {
  const Warnings warnings;
  const Stream cached = Stream(std::make_shared<SparseElements>()).cache(path_);
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(targets_of(cached.read_all()), up_to(4));
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_NE(warnings.texts[0].find("sparse"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(StreamCache, SaysWhyAPathCannotBeUsed) {
  const Stream records = testing::numbers_in({2});
  const std::string missing = path_ + "_missing";
  expect_error<DataError>([&] { records.cache(missing + "/a"); }, "LS-DATA-FILE", {"no folder '" + missing + "'"});
  fs::create_directory(missing);
  expect_error<DataError>([&] { records.cache(missing); }, "LS-DATA-FILE", {"'" + missing + "'", "plain file"});
  fs::remove_all(missing);
}

TEST_F(StreamCache, OfTwoWorkersIsWrittenByOneAndReadByBoth) {
  const auto batches = [&](int64_t workers) {
    std::atomic<int64_t> read = 0;
    const auto all = testing::run_workers({workers, 2}, [&](Strategy& strategy) {
      const auto files = testing::files_of({9, 8});
      const Stream cached = data::from_records(files, parse_number).cache(path_);
      const auto data = strategy.distribute(cached, {.global_batch = 6});
      std::vector<Numbers> parts;
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        for (const auto& step : data.epoch(epoch)) {
          for (const Batch& part : step) parts.push_back(targets_of({part}));
        }
      }
      read += files->read;
      return parts;
    });
    return std::pair(all, read.load());
  };
  const auto [one, read_by_one] = batches(1);
  EXPECT_EQ(read_by_one, 17);
  remove();
  const auto [two, read_by_two] = batches(2);
  EXPECT_GE(read_by_two, 17);
  EXPECT_LE(read_by_two, 34) << "the second epoch comes from the file";
  for (std::size_t i = 0; i < one[0].size(); ++i) EXPECT_EQ(two[i % 2][i / 2], one[0][i]);
  EXPECT_EQ(batches(2).second, 0);
}

TEST_F(StreamCache, GivesTheSameBatchesOnAnyNumberOfLanes) {
  const auto batches = [&](int lanes) {
    std::vector<std::string> devices;
    for (int lane = 0; lane < lanes; ++lane) devices.push_back("cpu:" + std::to_string(lane));
    MirroredStrategy strategy({.devices = devices, .replicas = 4});
    const auto data = strategy.distribute(testing::numbers_in({9, 8}).cache(path_), {.global_batch = 6, .prefetch = 2});
    std::vector<Numbers> all;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& step : data.epoch(epoch)) {
        for (const Batch& part : step) all.push_back(targets_of({part}));
      }
    }
    return all;
  };
  const auto one = batches(1);
  EXPECT_EQ(batches(1), one) << "from the file";
  EXPECT_EQ(batches(4), one);
  remove();
  EXPECT_EQ(batches(2), one);
}

}  // namespace
}  // namespace lockstep
