// What data sets promise about their sources, the library's and users'.
#include "lockstep/data/dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>

#include "lockstep/data/sources/sources.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;

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

/// Reading the samples 2, 0 and 1 from it ends with a DataError that names the source, the samples and these values.
void expect_refused(Made::Read read, std::initializer_list<std::string_view> values = {},
                    const testing::Where& where = testing::Where::current()) {
  const Dataset dataset(std::make_shared<Made>(std::move(read)));
  const auto use = [&] { dataset.read(std::vector<int64_t>{2, 0, 1}); };
  expect_error<DataError>(use, "LS-SOURCE", {"a source of the test", "3 samples (2, 0, 1)"}, where);
  expect_error<DataError>(use, "LS-SOURCE", values, where);
}

torch::Tensor rows(int64_t count) { return torch::zeros({count, 2}); }

TEST(Source, ThatGivesOtherRowsThanAskedIsNamedWithWhatCame) {
  expect_refused([](auto) { return Batch{rows(2), rows(3)}; }, {"input Float [2, 2]", "target Float [3, 2]"});
  expect_refused([](auto) { return Batch{rows(3), rows(4)}; }, {"input Float [3, 2]", "target Float [4, 2]"});
  expect_refused([](auto) { return Batch{rows(4), rows(4)}; }, {"input Float [4, 2]", "target Float [4, 2]"});
  expect_refused([](auto) { return Batch{rows(3), {}}; }, {"input Float [3, 2]", "target undefined"});
  expect_refused([](auto) { return Batch{}; }, {"input undefined", "target undefined"});
  expect_refused([](auto) { return Batch{torch::ones({}), rows(3)}; }, {"input Float []", "target Float [3, 2]"});
}

TEST(Source, ThatGivesOtherSamplesThanAskedIsNamed) {
  const auto with_ids = [](const torch::Tensor& ids) { return [ids](auto) { return Batch{rows(3), rows(3), ids}; }; };
  expect_refused(with_ids(torch::tensor({0, 1, 2}, torch::kLong)), {"Batch::ids"});
  expect_refused(with_ids(torch::tensor({2, 0}, torch::kLong)), {"Batch::ids"});
  expect_refused(with_ids(torch::tensor({2.0, 0.0, 1.0})), {"Batch::ids"});
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
  expect_refused(broken, {"the cable is out"});
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
  EXPECT_EQ(part.read(std::vector<int64_t>{1}).ids[0].item<int64_t>(), 3) << "its id in the whole";
  expect_error<DataError>(
      [&] {
        part.read(std::vector<int64_t>{0, 1});
      },
      "LS-SOURCE", {"a source of the test", "2 samples (2, 3)", "Batch::ids"});
}

TEST(Source, OfANegativeSizeIsNamed) {
  const Dataset dataset(std::make_shared<Made>([](auto) { return Batch{}; }, -3));
  expect_error<DataError>([&] { dataset.size(); }, "LS-SOURCE", {"a source of the test", "-3"});
}

TEST(DatasetHandle, ReadsOnlySamplesThatItHas) {
  const Dataset dataset = data::from_tensors(torch::ones({3, 2}), torch::ones({3}));
  for (const int64_t id : {int64_t{-1}, int64_t{3}, std::numeric_limits<int64_t>::min()}) {
    const std::string sample = "sample " + std::to_string(id);
    expect_error<UsageError>([&] { dataset.read(std::vector<int64_t>{0, id}); }, "LS-SAMPLE-RANGE", {sample});
  }
  EXPECT_EQ(dataset.read(std::vector<int64_t>{}).input.sizes(), (std::vector<int64_t>{0, 2}));
  const Dataset slice = data::slice(dataset, 1, 2);
  expect_error<UsageError>([&] { slice.read(std::vector<int64_t>{1}); }, "LS-SAMPLE-RANGE", {"sample 1"});
}

TEST(DatasetHandle, ThatIsEmptySaysSo) {
  const Dataset empty;
  for (const auto& use :
       std::vector<std::function<void()>>{[&] { empty.size(); }, [&] { empty.read_all(); }, [&] { empty.source(); },
                                          [&] { data::slice(empty, 0, 0); }}) {
    expect_error<UsageError>(use, "LS-EMPTY-HANDLE", {"Dataset"});
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
  const auto refused = [&](const torch::Tensor& input, const torch::Tensor& target, const char* code, const char* what,
                           const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { data::from_tensors(input, target); }, code, {"from_tensors", what}, where);
  };
  refused(torch::ones({}), torch::ones({}), "LS-BATCH", "input");
  refused(rows, torch::ones({2}), "LS-BATCH", "target Float [2]");
  refused(torch::Tensor(), rows, "LS-NOT-DENSE", "input");
  refused(rows, torch::Tensor(), "LS-NOT-DENSE", "target");
  refused(rows.to_sparse(), rows, "LS-NOT-DENSE", "input");
  refused(torch::ones({3, 2}, torch::kMeta), rows, "LS-NOT-HOST", "meta");
}

TEST(Slice, RefusesBordersThatThereAreNot) {
  const Dataset dataset = data::from_tensors(torch::ones({3, 2}), torch::ones({3}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {2, 1}, {0, 4}, {kMost, kMost}}) {
    const std::string borders = std::to_string(begin) + " to " + std::to_string(end);
    expect_error<UsageError>([&, from = begin, to = end] { data::slice(dataset, from, to); }, "LS-SAMPLE-RANGE",
                             {borders});
  }
  EXPECT_EQ(data::slice(dataset, 3, 3).size(), 0);
}

TEST(DigitsOf, ANegativeNumberOfImagesAreRefusedAndOfNoneAreNone) {
  expect_error<UsageError>([] { data::digits(-1, 5); }, "LS-OPTION", {"digits", "-1 and 5"});
  expect_error<UsageError>([] { data::digits(5, -1); }, "LS-OPTION", {"digits", "5 and -1"});
  EXPECT_EQ(data::digits(0, 1).train.size(), 0);
}

}  // namespace
}  // namespace lockstep
