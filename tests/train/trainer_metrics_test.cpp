// Metrics of a Trainer: what they tell apart, forms of outputs, and refusals.
#include "lockstep/train/trainer_metrics.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"
#include "tests/train/judged_set.h"

namespace lockstep::testing {
namespace {

using metrics::Outputs;

TEST(TrainerMetrics, AMeanOverPartsIsAnotherNumber) {
  const json wrong = judged().at("mean_over_parts");
  const Set set{input("logits"), input("targets", at::kLong)};
  EXPECT_GT(std::abs(whole(metrics::perplexity(), set).at("perplexity") - wrong.at("perplexity").get<double>()), 0.1);
  EXPECT_GT(std::abs(whole(metrics::accuracy(), set).at("accuracy") - wrong.at("accuracy").get<double>()), 0.04);
}

TEST(TrainerMetrics, TheOrderOfRowsDoesNotChangeABit) {
  const Tensor weights = input("weights").mul(0.1).add(0.1);
  const Set set{probabilities("ties"), input("binary_targets", at::kLong), weights};
  for (const MetricSpec& spec : {metrics::auc(), metrics::average_precision()}) {
    const MetricCounts counts = spec.update(set.output, set.part(0, set.size()));
    const Tensor order = at::arange(set.size(), at::kLong).mul(31).remainder(set.size());
    EXPECT_EQ(spec.results(counts), spec.results({.rows = counts.rows.index_select(0, order)})) << spec.name;
  }
  const MetricSpec f1 = metrics::f1();
  const Set classes{input("logits"), input("targets", at::kLong), weights};
  const Tensor rows = f1.update(classes.output, classes.part(0, 97)).rows;
  EXPECT_EQ(f1.results({.rows = rows}), f1.results({.rows = rows.flip(0)}));
}

TEST(TrainerMetrics, LogitsAreToldFromProbabilitiesByAllThatWasCounted) {
  const Tensor target = at::tensor(std::vector<int64_t>{0, 1, 1, 0});
  // No output of the first part is outside of [0, 1].
  const Set logits{at::tensor({0.25, 0.25, 0.75, -2.0}), target};
  const MetricSpec accuracy = metrics::accuracy();
  const auto parts = [&](const MetricSpec& spec) {
    return spec.results(together(spec, {spec.update(logits.output.slice(0, 0, 2), logits.part(0, 2)),
                                        spec.update(logits.output.slice(0, 2, 4), logits.part(2, 4))}));
  };
  EXPECT_EQ(parts(accuracy).at("accuracy"), 0.75);
  EXPECT_EQ(parts(metrics::accuracy({.outputs = Outputs::kLogits})).at("accuracy"), 0.75);
  EXPECT_EQ(parts(metrics::accuracy({.outputs = Outputs::kProbabilities})).at("accuracy"), 0.75);
  EXPECT_EQ(parts(metrics::recall()).at("recall"), 1);
  EXPECT_EQ(parts(metrics::recall({.outputs = Outputs::kProbabilities})).at("recall"), 0.5);
  EXPECT_EQ(parts(metrics::confusion_matrix(2)).at("confusion_matrix/1/1"), 2);
  EXPECT_EQ(parts(metrics::confusion_matrix(2, Outputs::kProbabilities)).at("confusion_matrix/1/1"), 1);
  const Set first{logits.output.slice(0, 0, 2), target.slice(0, 0, 2)};
  EXPECT_EQ(whole(metrics::recall(), first).at("recall"), 0);
  EXPECT_EQ(whole(metrics::recall({.outputs = Outputs::kLogits}), first).at("recall"), 1);
}

TEST(TrainerMetrics, ExactlyHalfIsNo) {
  const Set set{at::tensor({0.5f, 0.5f}), at::tensor(std::vector<int64_t>{0, 1})};
  EXPECT_EQ(whole(metrics::recall(), set).at("recall"), 0);
  EXPECT_EQ(whole(metrics::recall({.outputs = Outputs::kLogits}), {at::zeros({2}), set.target}).at("recall"), 0);
}

TEST(TrainerMetrics, AThresholdAucOfLogitsIsThatOfTheirProbabilities) {
  const Tensor share = probabilities("spread").to(at::kDouble);
  const Tensor target = input("binary_targets", at::kLong);
  const metrics::AucOptions options{.thresholds = 50};
  EXPECT_EQ(whole(metrics::auc(options), {share.logit(), target}), whole(metrics::auc(options), {share, target}));
  EXPECT_EQ(whole(metrics::auc({.thresholds = 2}), {share, target}).at("auc"), 0.5);
}

TEST(TrainerMetrics, FormsOfBinaryOutputsGiveTheSame) {
  const Tensor share = probabilities("spread");
  const Tensor target = input("binary_targets", at::kLong);
  const Tensor logits = at::stack({at::zeros_like(share), share.logit()}, 1);
  for (const MetricSpec& spec : {metrics::accuracy(), metrics::precision(), metrics::f1(), metrics::auc()}) {
    const auto expected = whole(spec, {share, target});
    EXPECT_EQ(whole(spec, {share.unsqueeze(1), target}), expected) << spec.name;
    EXPECT_EQ(whole(spec, {share.unsqueeze(1), target.unsqueeze(1).to(at::kFloat)}), expected) << spec.name;
    EXPECT_EQ(whole(spec, {share.to(at::kDouble), target.to(at::kBool)}), expected) << spec.name;
    EXPECT_EQ(whole(spec, {logits, target}), expected) << spec.name;
  }
}

TEST(TrainerMetrics, OutputsWithTargetsOfTheirOwnAreClasses) {
  const Tensor output = at::tensor({0.9, 0.2, 0.8, 0.7, 0.1, 0.6}).reshape({3, 2});
  const Tensor target = at::tensor({1.0, 0.0, 0.0, 1.0, 1.0, 1.0}).reshape({3, 2});
  EXPECT_EQ(whole(metrics::accuracy(), {output, target}).at("accuracy"), 4.0 / 6);
  const auto each = whole(metrics::precision({.average = Average::kEach}), {output, target});
  EXPECT_EQ(each, (std::map<std::string, double>{{"precision/0", 0.5}, {"precision/1", 1}}));
  EXPECT_EQ(whole(metrics::precision(), {output, target}).at("precision"), 0.75);
  EXPECT_EQ(whole(metrics::precision({.average = Average::kMicro}), {output, target}).at("precision"), 0.75);
}

TEST(TrainerMetrics, ClassesThatNeverComeCountAsZeroInMacro) {
  const Tensor logits = at::eye(4).slice(0, 0, 2);
  const Tensor target = at::tensor(std::vector<int64_t>{0, 1});
  EXPECT_EQ(whole(metrics::f1(), {logits, target}).at("f1"), 0.5);
  EXPECT_EQ(whole(metrics::f1({.average = Average::kWeighted}), {logits, target}).at("f1"), 1);
}

TEST(TrainerMetrics, PredictedClassesAreTakenAsTheyAre) {
  const Tensor predicted = at::tensor(std::vector<int64_t>{0, 2, 1});
  const Tensor target = at::tensor(std::vector<int64_t>{0, 1, -100});
  EXPECT_EQ(whole(metrics::accuracy(), {predicted, target}).at("accuracy"), 0.5);
  EXPECT_EQ(whole(metrics::recall({.average = Average::kEach, .classes = 3}), {predicted, target}).at("recall/0"), 1);
  expect_error<UsageError>([&] { whole(metrics::recall(), {predicted, target}); }, "LS-SHAPE", {"recall"});
  expect_error<UsageError>([&] { whole(metrics::recall({.classes = 2}), {predicted, target}); }, "LS-TARGET");
}

TEST(TrainerMetrics, NothingCountedIsZero) {
  const Set none{at::zeros({0, 3}), at::zeros({0}, at::kLong)};
  const Set weightless{at::ones({2, 3}), at::zeros({2}, at::kLong), at::zeros({2})};
  for (const MetricSpec& spec : {metrics::accuracy(), metrics::top_k(2), metrics::precision(), metrics::recall(),
                                 metrics::f1(), metrics::f1({.average = Average::kWeighted})}) {
    EXPECT_EQ(whole(spec, none).at(spec.name), 0) << spec.name;
    EXPECT_EQ(whole(spec, weightless).at(spec.name), 0) << spec.name;
  }
  EXPECT_EQ(whole(metrics::perplexity(), none).at("perplexity"), 1);
  const Set empty{at::zeros({0}), at::zeros({0})};
  for (const MetricSpec& spec : {metrics::auc(), metrics::average_precision(), metrics::auc({.thresholds = 10}),
                                 metrics::mean_squared_error(), metrics::accuracy()}) {
    EXPECT_EQ(whole(spec, empty).at(spec.name), 0) << spec.name;
  }
  const Set positives{at::ones({3}), at::ones({3})};
  EXPECT_EQ(whole(metrics::auc(), positives).at("auc"), 0);
  EXPECT_EQ(whole(metrics::precision(), {at::zeros({3}), at::ones({3})}).at("precision"), 0);
}

TEST(TrainerMetrics, WhatIsNotANumberShows) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor target = at::tensor({0.0, 1.0});
  EXPECT_TRUE(std::isnan(whole(metrics::auc(), {at::tensor({nan, 0.5}), target}).at("auc")));
  EXPECT_TRUE(std::isnan(whole(metrics::mean_squared_error(), {at::tensor({nan, 0.5}), target})["mean_squared_error"]));
  // With weight 0 it does not count.
  const Set weighted{at::tensor({nan, 0.5}), target, at::tensor({0.0, 1.0})};
  EXPECT_EQ(whole(metrics::mean_squared_error(), weighted).at("mean_squared_error"), 0.25);
}

TEST(TrainerMetrics, AMeanOfOneValueForAPartIsWeightedByItsSamples) {
  const auto part_mean = [](const Tensor& output, const Batch& batch) {
    return output.slice(0, 0, batch.samples()).mean();
  };
  const auto as_number = [&](const Tensor& output, const Batch& batch) {
    return part_mean(output, batch).item<double>();
  };
  const Set set{at::arange(97).to(at::kFloat), at::zeros({97})};
  expect_number(metrics::mean("mine", part_mean), set, 48, 1e-6);
  expect_number(metrics::mean("mine", as_number), set, 48, 1e-6);
  EXPECT_FALSE(metrics::mean("mine", part_mean).higher_is_better);
  EXPECT_TRUE(metrics::mean("mine", as_number, true).higher_is_better);
}

TEST(TrainerMetrics, SayWhichWayIsBetter) {
  for (const MetricSpec& spec : {metrics::accuracy(), metrics::top_k(1), metrics::precision(), metrics::recall(),
                                 metrics::f1(), metrics::auc(), metrics::average_precision()}) {
    EXPECT_TRUE(spec.higher_is_better) << spec.name;
  }
  EXPECT_FALSE(metrics::mean_squared_error().higher_is_better);
  EXPECT_FALSE(metrics::mean_absolute_error().higher_is_better);
  EXPECT_FALSE(metrics::perplexity().higher_is_better);
}

TEST(TrainerMetrics, CountBeyondWhatFloat32Holds) {
  const Set set{at::ones({1}), at::ones({1}), at::full({1}, 16777217.0, at::kDouble)};
  EXPECT_EQ(metrics::accuracy().update(set.output, set.part(0, 1)).sums[2].item<double>(), 16777217.0);
}

TEST(TrainerMetrics, RefuseWhatDoesNotGoTogether) {
  const Tensor classes = at::tensor(std::vector<int64_t>{0, 1, 5});
  expect_error<UsageError>([&] { whole(metrics::accuracy(), {at::ones({3, 4}), classes}); }, "LS-TARGET", {"5", "4"});
  expect_error<UsageError>([&] { whole(metrics::accuracy(), {at::ones({3}), classes}); }, "LS-TARGET", {"accuracy"});
  expect_error<UsageError>([&] { whole(metrics::auc(), {at::ones({3, 6}), classes}); }, "LS-SHAPE", {"auc"});
  expect_error<UsageError>([&] { whole(metrics::top_k(9), {at::ones({3, 6}), classes}); }, "LS-SHAPE", {"9"});
  expect_error<UsageError>([&] { whole(metrics::mean_squared_error(), {at::ones({3, 2}), classes}); }, "LS-SHAPE");
  expect_error<UsageError>([&] { whole(metrics::confusion_matrix(3), {at::ones({3, 6}), classes}); }, "LS-TARGET");
  expect_error<UsageError>([&] { whole(metrics::f1({.classes = 3}), {at::ones({3, 6}), classes}); }, "LS-SHAPE");
  expect_error<UsageError>([&] { whole(metrics::perplexity(), {at::ones({3, 6}), at::ones({3})}); }, "LS-DTYPE");
  expect_error<UsageError>([&] { whole(metrics::accuracy(), {at::ones({3, 6}), classes, at::ones({2})}); }, "LS-SHAPE");
  expect_error<UsageError>(
      [&] {
        whole(metrics::accuracy(), {at::ones({3, 6}), classes, -at::ones({3})});
      },
      "LS-WEIGHT");
  Batch both = Set{at::ones({3, 6}), classes, at::ones({3})}.part(0, 3);
  both.more["weights"] = at::ones({3});
  expect_error<UsageError>([&] { metrics::accuracy().update(both.input, both); }, "LS-BATCH");
  expect_error<UsageError>([] { metrics::top_k(0); }, "LS-OPTION", {"0"});
  expect_error<UsageError>([] { metrics::auc({.thresholds = 1}); }, "LS-OPTION");
  expect_error<UsageError>([] { metrics::confusion_matrix(1); }, "LS-OPTION");
  expect_error<UsageError>([] { metrics::f1({.classes = -1}); }, "LS-OPTION");
  expect_error<UsageError>([] { metrics::custom("mine", 0, {}, {}); }, "LS-OPTION", {"mine"});
}

}  // namespace
}  // namespace lockstep::testing
