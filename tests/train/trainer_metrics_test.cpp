// Metrics of a Trainer: Keras' numbers whole and in parts, with weights and padding; forms of outputs; refusals.
#include "lockstep/train/trainer_metrics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using at::Tensor;
using metrics::Outputs;
using nlohmann::json;
using testing::expect_error;

const json& judged() {
  static const json all = json::parse(std::ifstream(LOCKSTEP_TRAIN_TESTS "/judged/metrics.json"));
  return all;
}

Tensor tensor_of(const json& values, at::ScalarType dtype = at::kFloat) {
  if (!values[0].is_array()) {
    return at::tensor(values.get<std::vector<double>>(), at::kDouble).to(dtype);
  }
  std::vector<Tensor> rows;
  for (const json& row : values) rows.push_back(tensor_of(row, dtype));
  return at::stack(rows);
}

Tensor input(const char* name, at::ScalarType dtype = at::kFloat) {
  return tensor_of(judged().at("inputs").at(name), dtype);
}
Tensor probabilities(const char* kind) { return tensor_of(judged().at("inputs").at("probabilities").at(kind)); }

/// The number that was computed by definition, or that Keras gives.
json number(const std::string& metric, bool weighted, const char* whose = "exact") {
  for (const json& row : judged().at("results")) {
    if (row.at("metric") == metric && row.at("weighted") == weighted) return row.at(whose);
  }
  ADD_FAILURE() << "there is no " << metric;
  return 0.0;
}

/// A set: outputs, targets, and weights where it has them.
struct Set {
  Tensor output;
  Tensor target;
  Tensor weights = {};

  Batch part(int64_t from, int64_t to) const {
    Batch batch{.input = output.slice(0, from, to), .target = target.slice(0, from, to)};
    if (weights.defined()) batch.more["weight"] = weights.slice(0, from, to);
    return batch;
  }
  int64_t size() const { return output.size(0); }
};

/// What a Trainer does with parts: sums are added, and rows put together.
MetricCounts together(const MetricSpec& spec, const std::vector<MetricCounts>& parts) {
  MetricCounts whole{.sums = at::zeros({spec.sums}, at::kDouble), .rows = at::zeros({0, spec.columns}, at::kDouble)};
  for (const MetricCounts& part : parts) {
    if (spec.sums > 0) whole.sums.add_(part.sums);
    if (spec.columns > 0) whole.rows = at::cat({whole.rows, part.rows});
  }
  return whole;
}

std::map<std::string, double> whole(const MetricSpec& spec, const Set& set) {
  return spec.results(together(spec, {spec.update(set.output, set.part(0, set.size()))}));
}

/// In the parts of the judged set, from the first to the last or the other way round. With padding, each part has
/// 3 rows more, whose values would change everything.
std::map<std::string, double> in_parts(const MetricSpec& spec, const Set& set, bool backwards, bool padded) {
  std::vector<MetricCounts> parts;
  int64_t from = 0;
  for (const int64_t count : judged().at("inputs").at("part_sizes").get<std::vector<int64_t>>()) {
    Batch batch = set.part(from, from + count);
    if (padded) {
      const auto longer = [](const Tensor& rows, double value) {
        std::vector<int64_t> shape = rows.sizes().vec();
        shape[0] = 3;
        return at::cat({rows, at::full(shape, value, rows.options())});
      };
      batch.input = longer(batch.input, 77);
      batch.target = longer(batch.target, batch.target.is_floating_point() ? 1e9 : -100);
      if (set.weights.defined()) batch.more["weight"] = longer(batch.more["weight"], 5);
      batch.padding = 3;
    }
    parts.push_back(spec.update(batch.input, batch));
    from += count;
  }
  EXPECT_EQ(from, set.size());
  if (backwards) std::reverse(parts.begin(), parts.end());
  return spec.results(together(spec, parts));
}

/// `spec` gives `expected` of the set, whole and in parts.
void expect_number(const MetricSpec& spec, const Set& set, double expected, double tolerance = 1e-14,
                   const std::string& name = {}) {
  const std::string key = name.empty() ? spec.name : name;
  EXPECT_NEAR(whole(spec, set).at(key), expected, tolerance) << key;
  for (const bool padded : {false, true}) {
    for (const bool backwards : {false, true}) {
      EXPECT_NEAR(in_parts(spec, set, backwards, padded).at(key), expected, tolerance) << key;
    }
  }
}

class JudgedMetrics : public ::testing::TestWithParam<bool> {
 protected:
  Tensor weights() const { return GetParam() ? input("weights") : Tensor(); }
  Set of_classes() const { return {input("logits"), input("targets", at::kLong), weights()}; }
  Set binary(const char* kind = "spread") const {
    return {probabilities(kind), input("binary_targets", at::kLong), weights()};
  }
  Set regression() const { return {input("regression_outputs"), input("regression_targets"), weights()}; }
  double exact(const std::string& metric) const { return number(metric, GetParam()).get<double>(); }
  double keras(const std::string& metric) const { return number(metric, GetParam(), "keras").get<double>(); }
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutWeights, JudgedMetrics, ::testing::Bool());

TEST_P(JudgedMetrics, AccuracyAndTopK) {
  expect_number(metrics::accuracy(), of_classes(), exact("accuracy"));
  for (const int64_t k : {1, 2, 3}) {
    expect_number(metrics::top_k(k), of_classes(), exact("top_" + std::to_string(k) + "_accuracy"));
  }
  expect_number(metrics::accuracy(), binary(), exact("binary_accuracy"));
}

TEST_P(JudgedMetrics, PrecisionRecallAndF1OfTwoClasses) {
  expect_number(metrics::precision(), binary(), exact("precision"));
  expect_number(metrics::recall(), binary(), exact("recall"));
  const double f1 = number("f1", GetParam())[0].get<double>();
  expect_number(metrics::f1(), binary(), f1);
  expect_number(metrics::f1({.classes = 1}), binary(), f1);
  expect_number(metrics::f1({.average = Average::kEach}), binary(), f1, 1e-14, "f1/1");
}

TEST_P(JudgedMetrics, OneOutputForEachSampleIsTwoClasses) {
  const Set one = binary();
  Set two = one;
  two.output = at::stack({1 - one.output, one.output}, 1);
  for (const auto average : {Average::kAuto, Average::kMacro, Average::kMicro, Average::kWeighted}) {
    for (const int64_t classes : {0, 1}) {
      const auto expect = [&](auto* make) {
        const MetricSpec spec = make({.average = average, .classes = classes});
        expect_number(spec, one, whole(make({.average = average}), two).at(spec.name));
      };
      expect(&metrics::precision);
      expect(&metrics::recall);
      expect(&metrics::f1);
    }
  }
  const auto each = whole(metrics::f1({.average = Average::kEach}), one);
  EXPECT_EQ(each, whole(metrics::f1({.average = Average::kEach}), two));
  EXPECT_EQ(whole(metrics::f1({.average = Average::kMacro}), one).at("f1"), (each.at("f1/0") + each.at("f1/1")) / 2);
  // Where all is no, and was predicted as no, class 0 is all right, and class 1 never comes.
  const Set no{at::full({3}, 0.25), at::zeros({3}, at::kLong)};
  EXPECT_EQ(whole(metrics::f1({.average = Average::kMacro}), no).at("f1"), 0.5);
  EXPECT_EQ(whole(metrics::f1(), no).at("f1"), 0);
}

TEST_P(JudgedMetrics, PrecisionRecallAndF1OfSeveralClasses) {
  for (const int64_t classes : {0, 5}) {
    expect_number(metrics::f1({.average = Average::kMacro, .classes = classes}), of_classes(), exact("f1_macro"));
    expect_number(metrics::f1({.classes = classes}), of_classes(), exact("f1_macro"));
    expect_number(metrics::f1({.average = Average::kMicro, .classes = classes}), of_classes(), exact("f1_micro"));
    expect_number(metrics::f1({.average = Average::kWeighted, .classes = classes}), of_classes(),
                  exact("f1_by_support"));
    for (int k = 0; k < 5; ++k) {
      const std::string one = std::to_string(k);
      const metrics::DecisionOptions each{.average = Average::kEach, .classes = classes};
      expect_number(metrics::precision(each), of_classes(), exact("precision_of_class_" + one), 1e-14,
                    "precision/" + one);
      expect_number(metrics::recall(each), of_classes(), exact("recall_of_class_" + one), 1e-14, "recall/" + one);
      expect_number(metrics::f1(each), of_classes(), number("f1_of_each_class", GetParam())[k].get<double>(), 1e-14,
                    "f1/" + one);
    }
  }
}

TEST_P(JudgedMetrics, AreasUnderCurvesAreExactWhateverTheScale) {
  for (const std::string kind : {"spread", "narrow", "ties"}) {
    const Set set = binary(kind.c_str());
    expect_number(metrics::auc(), set, exact("auc_" + kind + "_200_thresholds"));
    expect_number(metrics::average_precision(), set, exact("auc_pr_" + kind + "_200_thresholds"));
    expect_number(metrics::auc({.thresholds = 200}), set, keras("auc_" + kind + "_200_thresholds"), 1e-6);
    expect_number(metrics::auc({.thresholds = 20000}), set, keras("auc_" + kind + "_20000_thresholds"), 1e-6);
  }
}

TEST_P(JudgedMetrics, ThresholdsAreWrongForRareEvents) {
  const double wrong = whole(metrics::auc({.thresholds = 200}), binary("narrow")).at("auc");
  EXPECT_GT(std::abs(wrong - exact("auc_narrow_200_thresholds")), 0.1);
}

TEST_P(JudgedMetrics, Errors) {
  expect_number(metrics::mean_squared_error(), regression(), exact("mean_squared_error"));
  expect_number(metrics::mean_absolute_error(), regression(), exact("mean_absolute_error"));
}

TEST_P(JudgedMetrics, PerplexityIsThatOfTheWholeMean) {
  // The logarithms of float32 logits are float32.
  expect_number(metrics::perplexity(), of_classes(), exact("perplexity"), 1e-6);
  const Set wide{input("logits", at::kDouble), input("targets", at::kLong), weights()};
  expect_number(metrics::perplexity(), wide, exact("perplexity"), 1e-13);
}

TEST_P(JudgedMetrics, ConfusionMatrixHasTargetsAsRows) {
  const json matrix = number("confusion_matrix", GetParam());
  for (int row = 0; row < 5; ++row) {
    for (int column = 0; column < 5; ++column) {
      expect_number(metrics::confusion_matrix(5), of_classes(), matrix[row][column].get<double>(), 0,
                    "confusion_matrix/" + std::to_string(row) + "/" + std::to_string(column));
    }
  }
}

TEST_P(JudgedMetrics, ThoseOfTheProgramsOwn) {
  const auto squares = [](const Tensor& output, const Batch& batch) { return output.sub(batch.target).square(); };
  expect_number(metrics::mean("mine", squares), regression(), exact("mean_squared_error"), 1e-7);
  const MetricSpec own = metrics::custom(
      "mine", 2,
      [](const Tensor& output, const Batch& batch) {
        const Tensor right = output.argmax(1).eq(batch.target).slice(0, 0, batch.samples());
        const Tensor each = metrics::sample_weights(batch);
        const Tensor weights = each.defined() ? each.slice(0, 0, batch.samples()) : at::ones_like(right, at::kFloat);
        return at::stack({right.mul(weights).sum(), weights.sum()});
      },
      [](const Tensor& sums) { return sums[0].item<double>() / sums[1].item<double>(); });
  expect_number(own, of_classes(), exact("accuracy"));
}

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
}  // namespace lockstep
