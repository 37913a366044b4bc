// What data sets promise about their sources, the library's and users'.
#include "lockstep/data/dataset.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "lockstep/data/sources.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::message_from;

/// A source of four samples whose read() is the test's.
class Made final : public data::Source {
 public:
  using Read = std::function<Batch(std::span<const int64_t>)>;
  explicit Made(Read read, int64_t size = 4) : read_(std::move(read)), size_(size) {}
  int64_t size() const override { return size_; }
  Batch read(std::span<const int64_t> ids) const override { return read_(ids); }
  std::string describe() const override { return "a source of the test"; }

 private:
  const Read read_;
  const int64_t size_;
};

/// What reading the samples 2, 0 and 1 from it ends with: a DataError that names the source.
std::string reading(Made::Read read) {
  const Dataset dataset(std::make_shared<Made>(std::move(read)));
  std::string code;
  const std::string text = message_from<DataError>([&] {
    try {
      dataset.read(std::vector<int64_t>{2, 0, 1});
    } catch (const DataError& error) {
      code = error.code();
      throw;
    }
  });
  EXPECT_EQ(code, "LS-SOURCE");
  EXPECT_NE(text.find("a source of the test was asked for 3 samples (2, 0, 1)"), std::string::npos) << text;
  return text;
}

torch::Tensor rows(int64_t count) { return torch::zeros({count, 2}); }

TEST(Source, ThatGivesOtherRowsThanAskedIsNamedWithWhatCame) {
  EXPECT_NE(reading([](auto) { return Batch{rows(2), rows(3)}; }).find("input Float [2, 2]"), std::string::npos);
  EXPECT_NE(reading([](auto) { return Batch{rows(3), rows(4)}; }).find("target Float [4, 2]"), std::string::npos);
  EXPECT_NE(reading([](auto) { return Batch{rows(4), rows(4)}; }).find("input Float [4, 2]"), std::string::npos);
  EXPECT_NE(reading([](auto) { return Batch{rows(3), {}}; }).find("target undefined"), std::string::npos);
  EXPECT_NE(reading([](auto) { return Batch{}; }).find("input undefined"), std::string::npos);
  reading([](auto) { return Batch{torch::ones({}), rows(3)}; });
}

TEST(Source, ThatGivesOtherSamplesThanAskedIsNamed) {
  reading([](auto) { return Batch{rows(3), rows(3), torch::tensor({0, 1, 2}, torch::kLong)}; });
  reading([](auto) { return Batch{rows(3), rows(3), torch::tensor({2, 0}, torch::kLong)}; });
  reading([](auto) { return Batch{rows(3), rows(3), torch::tensor({2.0, 0.0, 1.0})}; });
  const Dataset right(std::make_shared<Made>([](auto) {
    return Batch{rows(3), rows(3), torch::tensor({2, 9, 0, 9, 1}, torch::kLong).slice(0, 0, 5, 2)};
  }));
  EXPECT_EQ(right.read(std::vector<int64_t>{2, 0, 1}).global_size, 3);
}

TEST(Source, ThatThrowsIsNamedAndItsExceptionNested) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto broken = [](auto) -> Batch { throw Mine("the cable is out"); };
  EXPECT_NE(reading(broken).find("failed: the cable is out"), std::string::npos);
  try {
    Dataset(std::make_shared<Made>(broken)).read(std::vector<int64_t>{0});
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), Mine);
  }
  // An error of the library says already what is wrong with what.
  const auto knows = [](auto) -> Batch { throw ClusterError("the server is gone", "start it"); };
  EXPECT_THROW(Dataset(std::make_shared<Made>(knows)).read(std::vector<int64_t>{0}), ClusterError);
}

TEST(Source, OfASliceIsLookedAtToo) {
  const Dataset whole(std::make_shared<Made>([](std::span<const int64_t> ids) {
    const auto count = static_cast<int64_t>(ids.size());
    return Batch{rows(count), rows(count), torch::full({count}, ids[0], torch::kLong)};
  }));
  const Dataset part = data::slice(whole, 2, 4);
  EXPECT_EQ(part.read(std::vector<int64_t>{1}).ids[0].item<int64_t>(), 1) << "3 of the whole";
  message_from<DataError>([&] { part.read(std::vector<int64_t>{0, 1}); });
}

TEST(Source, OfANegativeSizeIsNamed) {
  const Dataset dataset(std::make_shared<Made>([](auto) { return Batch{}; }, -3));
  EXPECT_NE(message_from<DataError>([&] { dataset.size(); }).find("a source of the test has a size of -3"),
            std::string::npos);
}

TEST(DatasetHandle, ReadsOnlySamplesThatItHas) {
  const Dataset dataset = data::from_tensors(torch::ones({3, 2}), torch::ones({3}));
  for (const int64_t id : {int64_t{-1}, int64_t{3}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_NE(message_from<UsageError>([&] {
                dataset.read(std::vector<int64_t>{0, id});
              }).find("LS-SAMPLE-RANGE"),
              std::string::npos);
  }
  EXPECT_EQ(dataset.read(std::vector<int64_t>{}).input.sizes(), (std::vector<int64_t>{0, 2}));
  const Dataset slice = data::slice(dataset, 1, 2);
  message_from<UsageError>([&] { slice.read(std::vector<int64_t>{1}); });
}

TEST(DatasetHandle, ThatIsEmptySaysSo) {
  const Dataset empty;
  for (const auto& use :
       std::vector<std::function<void()>>{[&] { empty.size(); }, [&] { empty.read_all(); }, [&] { empty.source(); },
                                          [&] { data::slice(empty, 0, 0); }}) {
    EXPECT_NE(message_from<UsageError>(use).find("LS-EMPTY-HANDLE"), std::string::npos);
  }
}

TEST(FromTensors, TakesViewsAndNoSamples) {
  const torch::Tensor all = torch::arange(12).view({3, 4});
  const Dataset columns = data::from_tensors(all.t(), all.t().select(1, 0));
  const Batch batch = columns.read(std::vector<int64_t>{3, 0});
  EXPECT_TRUE(torch::equal(batch.input, torch::tensor({{3, 7, 11}, {0, 4, 8}})));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({3, 0})));
  const Dataset spread = data::from_tensors(torch::ones({1, 2}).expand({5, 2}), torch::ones({5}));
  EXPECT_EQ(spread.read_all().input.sizes(), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(data::from_tensors(torch::ones({0, 3}), torch::ones({0})).read_all().input.sizes(),
            (std::vector<int64_t>{0, 3}));
}

TEST(FromTensors, RefusesWhatHasNoRowsInTheHostsMemory) {
  const torch::Tensor rows = torch::ones({3, 2});
  const auto refused = [&](const torch::Tensor& input, const torch::Tensor& target, const char* code) {
    const auto text = message_from<UsageError>([&] { data::from_tensors(input, target); });
    EXPECT_NE(text.find(code), std::string::npos) << text;
  };
  refused(torch::ones({}), torch::ones({}), "LS-BATCH");
  refused(rows, torch::ones({2}), "LS-BATCH");
  refused(torch::Tensor(), rows, "LS-NOT-DENSE");
  refused(rows, torch::Tensor(), "LS-NOT-DENSE");
  refused(rows.to_sparse(), rows, "LS-NOT-DENSE");
  refused(torch::ones({3, 2}, torch::kMeta), rows, "LS-NOT-HOST");
}

TEST(Slice, RefusesBordersThatThereAreNot) {
  const Dataset dataset = data::from_tensors(torch::ones({3, 2}), torch::ones({3}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {2, 1}, {0, 4}, {kMost, kMost}}) {
    message_from<UsageError>([&, from = begin, to = end] { data::slice(dataset, from, to); });
  }
  EXPECT_EQ(data::slice(dataset, 3, 3).size(), 0);
}

TEST(DigitsOf, ANegativeNumberOfImagesAreRefusedAndOfNoneAreNone) {
  message_from<UsageError>([] { data::digits(-1, 5); });
  message_from<UsageError>([] { data::digits(5, -1); });
  EXPECT_EQ(data::digits(0, 1).train.size(), 0);
}

}  // namespace
}  // namespace lockstep
