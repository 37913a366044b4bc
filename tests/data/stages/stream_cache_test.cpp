// A stream's elements that are kept in a file.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/stages/element_file.h"
#include "lockstep/data/stream.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "lockstep/strategy/kinds/one_device.h"
#include "tests/data/records_in_memory.h"
#include "tests/data/stages/cache_path.h"
#include "tests/support/full_disk.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::parse_number;
using testing::targets_of;
using testing::up_to;
using testing::Warnings;
using Numbers = std::vector<int64_t>;
using StreamCache = testing::WithCachePath;

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

TEST_F(StreamCache, BehindTakeIsKeptAndBeforeTakeOnlyWhereItAsksForTheEnd) {
  const auto files = testing::files_of({5});
  const Stream records = data::from_records(files, parse_number);
  const Stream all = records.cache(path_).take(5);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(targets_of(all.read_all()), up_to(5));
  EXPECT_EQ(files->read, 10) << "take(5) does not ask whether there is a sixth one";
  EXPECT_FALSE(fs::exists(path_));
  files->read = 0;
  const Stream more = records.cache(path_).take(6);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(targets_of(more.read_all()), up_to(5));
  EXPECT_EQ(files->read, 5);
  const Stream first = records.take(3).cache(path_ + "2");
  files->read = 0;
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(targets_of(first.read_all()), up_to(3));
  EXPECT_EQ(files->read, 3);
  fs::remove(path_ + "2");
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
    const auto recording = internal::ElementRecording::begin(path_, {.digest = 7});
    const bool added = recording && recording->add(0, parse_number("1", {}));
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

TEST_F(StreamCache, GivesTensorsOfTheSameStridesInEachPass) {
  const auto parse = [](const std::string& bytes, const data::RecordPlace& place) {
    Batch sample = parse_number(bytes, place);
    sample.input = torch::rand({1, 3, 4, 4}).to(torch::kFloat, false, false, torch::MemoryFormat::ChannelsLast);
    sample.more["every other"] = torch::rand({1, 9, 2}).select(2, 0);
    sample.more["expanded"] = torch::rand({1, 1}).expand({1, 7});
    return sample;
  };
  for (const std::string& path : {path_, std::string()}) {
    const Stream cached = data::from_records(testing::files_of({2}), parse).cache(path);
    const auto first = cached.read_all();
    const auto second = cached.read_all();
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(torch::equal(first[i].input, second[i].input));
      EXPECT_EQ(first[i].input.strides(), second[i].input.strides());
      EXPECT_EQ(first[i].more.at("every other").strides(), second[i].more.at("every other").strides());
      EXPECT_EQ(first[i].more.at("expanded").strides(), second[i].more.at("expanded").strides());
    }
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

TEST_F(StreamCache, KeepsItsElementsWhereALaterStageLeavesSomeOut) {
  for (const std::string& path : {path_, std::string()}) {
    const auto files = testing::files_of({6});
    const Stream stream = data::from_records(files, parse_number).cache(path).map([](Batch element) {
      if (element.target.item<int64_t>() == 3) throw std::runtime_error("a bad one");
      return element;
    });
    const Warnings warnings;
    OneDeviceStrategy strategy;
    const auto data = strategy.distribute(stream, {.global_batch = 2, .on_error = OnError::kSkip});
    files->read = 0;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      Numbers seen;
      for (const auto& step : data.epoch(epoch)) {
        const Numbers part = targets_of({step[ReplicaId(0)]});
        seen.insert(seen.end(), part.begin(), part.end());
      }
      EXPECT_EQ(seen, (Numbers{0, 1, 2, 4, 5}));
      EXPECT_EQ(data.skipped(), epoch + 1);
    }
    EXPECT_EQ(files->read, 6) << "in the first epoch only";
  }
}

TEST_F(StreamCache, IsWrittenBehindALinkWhoseTargetIsNotThereYet) {
  const std::string link = path_ + ".link";
  fs::remove(link);
  fs::create_symlink(fs::path(path_).filename(), link);
  testing::numbers_in({4}).cache(link).read_all();
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_regular_file(path_));
  fs::remove(link);
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
