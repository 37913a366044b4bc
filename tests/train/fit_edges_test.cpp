// Fits at the edges: one sample for several replicas, no epoch, losses of any form and dtype, and how the numbers of
// steps wait until they are brought together.
#include <cmath>
#include <exception>
#include <functional>
#include <map>

#include "lockstep/train/html_report.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "lockstep/train/step/waiting_counts.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

using LossFunction = std::function<torch::Tensor(const torch::Tensor&, const Batch&)>;

/// The logs of two epochs with this loss, without a callback, so that numbers of steps wait.
std::vector<Logs> epochs_with(const WorkersCase& one, const LossFunction& loss) {
  return run_workers(one,
                     [&](Strategy& strategy) {
                       const Setting setting(strategy);
                       Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = loss});
                       return trainer.fit(setting.train, {.epochs = 2}).epochs();
                     })
      .front();
}

}  // namespace

TEST(FitEdges, TrainOnOneSampleForSeveralReplicas) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 2, 1}, {1, 3, 2}, {2, 2, 1}}) {
    run_workers(one, [&](Strategy& strategy) {
      const Setting setting(strategy, 1);
      Trainer trainer = setting.trainer();
      const History history = trainer.fit(setting.train, {.epochs = 2, .validation = setting.train});
      EXPECT_EQ(history.epochs().size(), 2u) << one;
      for (const Logs& logs : history.epochs()) {
        EXPECT_TRUE(std::isfinite(logs.at("loss")) && logs.at("loss") > 0) << one;
      }
      EXPECT_EQ(trainer.predict(setting.train).sizes(), (std::vector<int64_t>{1, 3})) << one;
      return 0;
    });
  }
}

class FitEdgesFiles : public ScratchFolder {};

TEST_F(FitEdgesFiles, OfNoEpochAreWholeAndSayThatNothingWasTrained) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  const std::string before = digest_of(setting);
  const History history =
      trainer.fit(setting.train, {.epochs = 0,
                                  .validation = setting.validation,
                                  .callbacks = {callbacks::early_stopping({.restore_best = true}),
                                                callbacks::html_report({.file = path("report.html")})}});
  EXPECT_TRUE(history.epochs().empty());
  EXPECT_EQ(digest_of(setting), before);
  const internal::RunReport run = internal::run_in_page(text_of(path("report.html")), "report.html");
  EXPECT_EQ(run.state, internal::RunOutcome::kFinished);
  EXPECT_EQ(run.steps, 0);
}

TEST(FitEdges, TakeALossOfAnyFormOfOneNumber) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 2, 1}, {2, 2, 1}}) {
    const auto plain = epochs_with(one, cross_entropy);
    ASSERT_EQ(plain.size(), 2u);
    EXPECT_EQ(epochs_with(one,
                          [](const auto& output, const Batch& batch) {
                            return cross_entropy(output, batch).view({1, 1});
                          }),
              plain);
    EXPECT_EQ(epochs_with(
                  one, [](const auto& output, const Batch& batch) { return cross_entropy(output, batch).expand({1}); }),
              plain);
    const auto wide = epochs_with(
        one, [](const auto& output, const Batch& batch) { return cross_entropy(output.to(torch::kDouble), batch); });
    const auto narrow = epochs_with(
        one, [](const auto& output, const Batch& batch) { return cross_entropy(output, batch).to(torch::kBFloat16); });
    EXPECT_NEAR(wide[0].at("loss"), plain[0].at("loss"), 1e-5) << one;
    EXPECT_NEAR(narrow[0].at("loss"), plain[0].at("loss"), 0.05) << one;
  }
}

TEST(FitEdges, NameTheMetricWhoseResultsFailWhereNothingWasCounted) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    MetricSpec metric = largest_spec();
    metric.results = [](const MetricCounts& whole) -> std::map<std::string, double> {
      return {{"largest", whole.rows.max().item<double>()}};
    };
    Trainer trainer = setting.trainer({.metrics = {metric}});
    try {
      trainer.fit(setting.train, {.epochs = 1});
      ADD_FAILURE() << "the largest of no numbers is no number";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("'largest'"), std::string::npos) << error.what();
    }
    return 0;
  });
}

TEST(WaitingNumbersTest, AreWhatStackingGives) {
  const auto stacked = [](const std::vector<torch::Tensor>& values) {
    internal::WaitingNumbers numbers;
    for (const torch::Tensor& value : values) numbers.add(value);
    return numbers.stacked();
  };
  const torch::Tensor list = torch::arange(4, torch::kDouble);
  const std::vector<std::vector<torch::Tensor>> cases{
      {torch::full({}, 0.5), torch::full({}, 0.25), torch::full({}, -3.0)},
      {torch::full({}, 0.5, torch::kBFloat16), torch::full({}, 0.25, torch::kBFloat16)},
      {torch::full({}, 0.5, torch::kDouble), torch::full({}, NAN, torch::kDouble)},
      {list, list.add(1)},
      {torch::zeros({0}), torch::zeros({0})},
      {torch::arange(6.0).view({2, 3}).t(), torch::arange(6.0).view({3, 2})},   // not in the order of its memory
      {torch::ones({2}), torch::ones({1}).expand({2}), torch::full({2}, 3.0)},  // not dense
  };
  for (const auto& values : cases) {
    EXPECT_TRUE(torch::equal(stacked(values).nan_to_num(7), torch::stack(values).nan_to_num(7)));
    EXPECT_EQ(stacked(values).scalar_type(), values.front().scalar_type());
    EXPECT_TRUE(torch::equal(stacked({values.front()}), values.front())) << "of one, that itself";
  }
}

TEST(WaitingNumbersTest, KeepNoMemoryOfTheTensorsThatHadThem) {
  internal::WaitingNumbers numbers;
  torch::Tensor value = torch::full({}, 0.5);
  numbers.add(value);
  value.fill_(7);
  numbers.add(value);
  EXPECT_TRUE(torch::equal(numbers.stacked(), torch::tensor({0.5, 7.0}, torch::kFloat)));
  EXPECT_EQ(value.use_count(), 1u);
  numbers.clear();
  numbers.add(torch::ones({2}));
  EXPECT_EQ(numbers.stacked().sizes(), (std::vector<int64_t>{2}));
}

}  // namespace lockstep::testing
