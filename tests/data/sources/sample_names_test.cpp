// What errors call a sample: by its file, where it has one, whatever stages are behind it.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "lockstep/data/stages/stage.h"
#include "tests/data/records_in_memory.h"
#include "tests/data/tens.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::Numbers;
using testing::numbers_in;
using testing::tens;
using Values = std::initializer_list<std::string_view>;

/// Samples that lie in files of their own.
class InFiles final : public data::Source {
 public:
  explicit InFiles(std::string folder) : folder_(std::move(folder)) {}
  int64_t size() const override { return 8; }
  Batch read(std::span<const int64_t> ids) const override { return tens(8).read(ids); }
  std::string describe() const override { return "files of " + folder_; }
  std::string name_of(int64_t id) const override { return "'" + folder_ + "/" + std::to_string(id) + "'"; }

 private:
  const std::string folder_;
};

Dataset files_of(const std::string& folder) { return Dataset(std::make_shared<InFiles>(folder)); }

/// Inputs [1, 1] up to the number `last`, and wider ones behind it.
std::function<Batch(Batch)> wider_behind(int64_t last) {
  return [last](Batch sample) {
    if (sample.target.item<int64_t>() > last) sample.input = torch::zeros({1, 7});
    return sample;
  };
}

TEST(Map, NamesTheFileOfTheSampleThroughOtherStages) {
  const auto fails_on = [](const Dataset& data, int64_t id, Values values,
                           const testing::Where& where = testing::Where::current()) {
    const auto same = [](Batch rows) { return rows; };
    const auto fail = [](const Batch&) -> Batch { throw std::runtime_error("no such colour"); };
    expect_error<DataError>([&] { data.map_rows(same).map(same).map(fail).read(Numbers{id}); }, "LS-MAP", values,
                            where);
  };
  const Dataset a = files_of("a");
  fails_on(a, 1, {"'a/1'", "no such colour"});
  fails_on(a.skip(2).shard(2, 1).prefetch(1), 1, {"'a/5'"});
  fails_on(a.filter([](const Batch& one) { return one.target.item<int64_t>() > 30; }), 1, {"'a/5'"});
  fails_on(a.zip(files_of("b")).cache(), 1, {"'a/1'"});
  fails_on(a.take(1).concatenate(files_of("b")), 1, {"'b/0'"});
  fails_on(a.batch(3), 1, {"the group of 3 that begins with 'a/3'"});
  const Dataset twice = a.shuffle(5).repeat(2);
  for (const int64_t id : {3, 11}) {
    const int64_t file = twice.read(Numbers{id}).target.item<int64_t>() / 10;
    fails_on(twice, id, {"'a/" + std::to_string(file) + "'"});
  }
}

TEST(Map, OfAStreamNamesTheFileOfASampleOfADataSetWhereItsNumberIsThatOfOneFile) {
  const auto fails = [](const Dataset& data, Values values, const testing::Where& where = testing::Where::current()) {
    const auto fail = [](const Batch&) -> Batch { throw std::runtime_error("no such colour"); };
    expect_error<DataError>([&] { data::from_dataset(data).map(fail).read_all(); }, "LS-MAP", values, where);
  };
  fails(files_of("a").skip(3), {"'a/3'"});
  const Dataset shuffled = files_of("a").shuffle(5);  // another file comes first in each epoch
  const int64_t first = shuffled.read(Numbers{0}).ids.item<int64_t>();
  fails(shuffled, {"sample " + std::to_string(first) + " of shuffled files of a"});
}

TEST(Shapes, OfSamplesOfADataSetAreNamedByTheirFiles) {
  const auto differ = [](const Dataset& data, Values values, const Numbers& ids = {1, 4},
                         const testing::Where& where = testing::Where::current()) {
    expect_error<DataError>([&] { data.read(ids); }, "LS-SAMPLE-SHAPE", values, where);
  };
  const Dataset a = files_of("a");
  const Dataset mapped = a.map(wider_behind(30));
  differ(mapped, {"[1, 1] in 'a/1'", "[1, 7] in 'a/4'"});
  differ(mapped.skip(1), {"'a/1'", "'a/4'"}, {0, 3});
  differ(a.map(wider_behind(30), {.threads = 3}), {"'a/1'", "'a/4'"});
  differ(a.concatenate(files_of("b").map(wider_behind(-1))), {"'a/1'", "'b/2'"}, {10, 1});
  differ(a.batch(5), {"the group of 5 that begins with 'a/0'", "the group of 5 that begins with 'a/5'"}, {0, 1});
  differ(mapped.padded_batch(8, {.length = 6}), {"the length 7 in 'a/4'"}, {0});
  const Dataset cached = mapped.cache();
  for (const int64_t id : {1, 4}) cached.read(Numbers{id});
  differ(cached, {"'a/1'", "'a/4'"});
  const Dataset named = a.map([](Batch sample) {
    if (sample.target.item<int64_t>() > 30) sample.more["mask"] = sample.input;
    return sample;
  });
  differ(named, {"'a/1'", "'a/4'", "Batch::more"});
}

TEST(Shapes, OfRecordsAreNamedByFileAndRecord) {
  const auto differ = [](const Stream& stream, Values values, const testing::Where& where = testing::Where::current()) {
    MirroredStrategy strategy({.devices = testing::lanes(1)});
    const auto read_all = [&] {
      for (const auto& step : strategy.distribute(stream, {.global_batch = 12}).epoch(0)) static_cast<void>(step);
    };
    expect_error<DataError>(read_all, "LS-SAMPLE-SHAPE", values, where);
  };
  const Stream stream = numbers_in({3, 9}).map(wider_behind(6));
  differ(stream, {"[1, 2] in record 0 of 'file0'", "[1, 7] in record 4 of 'file1'"});
  differ(stream.batch(4), {"[1, 2] in record 1 of 'file1'", "[1, 7] in record 4 of 'file1'"});
  differ(stream.padded_batch(4, {.length = 6}), {"the length 7 in record 4 of 'file1'"});
  differ(numbers_in({2}).concatenate(stream.skip(3)), {"record 0 of 'file0'", "record 4 of 'file1'"});
}

TEST(Shapes, OfSamplesThatAreLeftOutAreNamedInTheLog) {
  MirroredStrategy strategy({.devices = testing::lanes(1)});
  const auto left_out = [&](const auto& data) {
    const testing::Warnings said;
    for (const auto& step : strategy.distribute(data, {.global_batch = 5, .on_error = OnError::kSkip}).epoch(0))
      static_cast<void>(step);
    return said.texts.empty() ? std::string() : said.texts.front();
  };
  const std::string file = left_out(files_of("a").take(5).map(wider_behind(30)));
  EXPECT_TRUE(testing::has_value(file, "'a/4'")) << file;
  const std::string record = left_out(numbers_in({1, 4}).map(wider_behind(3)));
  EXPECT_TRUE(testing::has_value(record, "record 3 of 'file1'")) << record;
}

}  // namespace
}  // namespace lockstep
