// The warning of a stall: which stage of a pipeline it names.
#include "lockstep/data/stages/stage_times.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/data/deal/row_feed.h"
#include "lockstep/data/deal/step_feed.h"
#include "tests/data/records_in_memory.h"
#include "tests/data/tens.h"

namespace lockstep {
namespace {

using testing::Numbers;
using testing::numbers_in;
using testing::tens;

/// Makes steps by a function; a step without parts is the end.
class StepsOf final : public internal::EpochReader {
 public:
  explicit StepsOf(std::function<bool()> read) : read_(std::move(read)) {}
  Work claim() override {
    return [this] {
      internal::LocalStep step;
      step.end = !read_();
      return step;
    };
  }

 private:
  const std::function<bool()> read_;
};

std::function<bool()> steps_of(const Dataset& dataset) {
  auto next = std::make_shared<int64_t>(0);
  return [dataset, next] {
    constexpr int64_t kAtOnce = 4;
    Numbers ids;
    for (; *next < dataset.size() && static_cast<int64_t>(ids.size()) < kAtOnce; ++*next) ids.push_back(*next);
    if (!ids.empty()) dataset.read(ids);
    return !ids.empty();
  };
}

std::function<bool()> steps_of(const Stream& stream) {
  auto rows = std::make_shared<internal::RowFeed>(stream, data::StreamPass{}, data::StreamPosition{});
  return [rows] { return rows->take(4).has_value(); };
}

/// Depths of reading ahead.
class InputStall : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, std::string_view line) {
      last_ = line;
      ++warnings_;
    });
  }
  void TearDown() override { set_log_sink({}); }

  bool is_ahead() const { return GetParam() > 0; }

  /// Its first call takes long: until the loop has been warned, or, where it is warned only afterwards, some ticks.
  void hold() {
    if (is_held_.exchange(true)) return;
    const auto begin = std::chrono::steady_clock::now();
    const auto has_been_long = [&] {
      if (is_ahead()) return warnings_ >= 3;
      return std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100);
    };
    while (!has_been_long()) std::this_thread::yield();
  }
  std::function<Batch(Batch)> slow() {
    return [this](Batch sample) {
      hold();
      return sample;
    };
  }
  static Batch fast(Batch sample) { return sample; }

  /// What the last warning says of stages, in a pipeline that is read to its end.
  template <class Data>
  std::string named_in(const Data& data) {
    is_held_ = false;
    warnings_ = 0;
    internal::StepFeed feed(std::make_unique<StepsOf>(steps_of(data)), GetParam(), 1, "the pipeline",
                            std::chrono::milliseconds(20));
    while (!feed.next().end) continue;
    const std::string before = "for the pipeline; its slowest stage is ";
    const std::size_t at = last_.find(before);
    return at == std::string::npos ? last_ : last_.substr(at + before.size());
  }

 private:
  std::string last_;
  std::atomic<int> warnings_ = 0;
  std::atomic<bool> is_held_ = false;
};

void expect_begins(const std::string& text, const std::string& beginning) {
  EXPECT_EQ(text.substr(0, beginning.size()), beginning) << text;
}

TEST_P(InputStall, NamesTheSlowMapAmongOthers) {
  for (const int64_t threads : {1, 3}) {
    const data::MapOptions options{.threads = threads, .name = "slow"};
    expect_begins(named_in(tens(12).map(fast).map(slow(), options).shuffle(3)),
                  "slow of map of 12 samples in tensors: ");
    expect_begins(named_in(numbers_in({12}).map(fast).map(slow(), options).shuffle(5).batch(2).map(fast)),
                  "slow of map of records in memory: ");
  }
}

class SlowSource final : public data::Source {
 public:
  explicit SlowSource(std::function<void()> hold) : hold_(std::move(hold)) {}
  int64_t size() const override { return 12; }
  Batch read(std::span<const int64_t> ids) const override {
    hold_();
    return tens(12).read(ids);
  }
  std::string describe() const override { return "a slow disk"; }

 private:
  const std::function<void()> hold_;
};

TEST_P(InputStall, NamesASlowSourceThatThreadsOfAMapRead) {
  const Dataset source(std::make_shared<SlowSource>([this] { hold(); }));
  expect_begins(named_in(source.map(fast, {.threads = 3}).batch(2)), "a slow disk: ");
  expect_begins(named_in(source.zip(tens(12)).repeat(2)), "a slow disk: ");
  expect_begins(named_in(data::from_dataset(source).map(fast, {.threads = 3}).batch(2)), "a slow disk: ");
}

TEST_P(InputStall, NamesTheSlowOneOfStreamsThatAreReadInTurn) {
  const data::InterleaveOptions in_turn{.cycle_length = 3};
  const Stream one = numbers_in({4}).map(slow(), {.name = "slow"});
  const Stream other = numbers_in({4}).map(fast, {.name = "fast"});
  expect_begins(named_in(data::interleave({other, one, other}, in_turn)), "slow of records in memory: ");
  expect_begins(named_in(numbers_in({3}).interleave(
                    [&](const Batch& b) { return b.target.item<int64_t>() == 1 ? one : other; }, in_turn)),
                "slow of records in memory: ");
  expect_begins(named_in(data::from_records(testing::files_of({2, 2, 2}),
                                            [this](const std::string& bytes, const data::RecordPlace& place) {
                                              if (place.file == 1) hold();
                                              return testing::parse_number(bytes, place);
                                            })),
                "file1: ");
}

TEST_P(InputStall, OfStreamsThatAreAllSlowIsNamedWithTheirNumber) {
  const auto parse = [](const std::string& bytes, const data::RecordPlace& place) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(80)) std::this_thread::yield();
    return testing::parse_number(bytes, place);
  };
  const std::string text = named_in(data::from_records(testing::files_of({1, 1, 1}), parse, {.cycle_length = 3}));
  expect_begins(text, "file");
  EXPECT_NE(text.find(" and 2 stages like it: "), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(AheadOrNot, InputStall, ::testing::Values(0, 2));

}  // namespace
}  // namespace lockstep
