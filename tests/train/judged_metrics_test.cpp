// Metrics of a Trainer against Keras' numbers: whole and in parts, with weights and padding.
#include <ATen/ATen.h>

#include "tests/train/judged_set.h"

namespace lockstep::testing {
namespace {

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

}  // namespace
}  // namespace lockstep::testing
