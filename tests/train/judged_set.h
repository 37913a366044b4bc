// The set of predictions that Keras has judged, and what a metric gives of a set.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/train/trainer_metrics.h"

namespace lockstep::testing {

using at::Tensor;
using nlohmann::json;

inline const json& judged() {
  static const json all = json::parse(std::ifstream(LOCKSTEP_TRAIN_TESTS "/judged/metrics.json"));
  return all;
}

inline Tensor tensor_of(const json& values, at::ScalarType dtype = at::kFloat) {
  if (!values[0].is_array()) {
    return at::tensor(values.get<std::vector<double>>(), at::kDouble).to(dtype);
  }
  std::vector<Tensor> rows;
  for (const json& row : values) rows.push_back(tensor_of(row, dtype));
  return at::stack(rows);
}

inline Tensor input(const char* name, at::ScalarType dtype = at::kFloat) {
  return tensor_of(judged().at("inputs").at(name), dtype);
}
inline Tensor probabilities(const char* kind) { return tensor_of(judged().at("inputs").at("probabilities").at(kind)); }

/// The number that was computed by definition, or that Keras gives.
inline json number(const std::string& metric, bool weighted, const char* whose = "exact") {
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
inline MetricCounts together(const MetricSpec& spec, const std::vector<MetricCounts>& parts) {
  MetricCounts whole{.sums = at::zeros({spec.sums}, at::kDouble), .rows = at::zeros({0, spec.columns}, at::kDouble)};
  for (const MetricCounts& part : parts) {
    if (spec.sums > 0) whole.sums.add_(part.sums);
    if (spec.columns > 0) whole.rows = at::cat({whole.rows, part.rows});
  }
  return whole;
}

inline std::map<std::string, double> whole(const MetricSpec& spec, const Set& set) {
  return spec.results(together(spec, {spec.update(set.output, set.part(0, set.size()))}));
}

/// In the parts of the judged set, from the first to the last or the other way round. With padding, each part has
/// 3 rows more, whose values would change everything.
inline std::map<std::string, double> in_parts(const MetricSpec& spec, const Set& set, bool backwards, bool padded) {
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
inline void expect_number(const MetricSpec& spec, const Set& set, double expected, double tolerance = 1e-14,
                          const std::string& name = {}) {
  const std::string key = name.empty() ? spec.name : name;
  EXPECT_NEAR(whole(spec, set).at(key), expected, tolerance) << key;
  for (const bool padded : {false, true}) {
    for (const bool backwards : {false, true}) {
      EXPECT_NEAR(in_parts(spec, set, backwards, padded).at(key), expected, tolerance) << key;
    }
  }
}

}  // namespace lockstep::testing
