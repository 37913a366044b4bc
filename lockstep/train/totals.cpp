#include "lockstep/train/totals.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/train/numbers.h"
#include "lockstep/train/step/waiting_counts.h"

namespace lockstep::internal::inline train {

namespace {

/// Float64 rows as hexadecimal digits, with which every bit is there again after a resume.
std::string text_of(const at::Tensor& rows) {
  std::string text;
  const at::Tensor values = rows.contiguous();
  const auto numbers = host_numbers<double>(values);
  text.reserve(numbers.size() * 16);
  for (const double value : numbers) text += fmt::format("{:016x}", std::bit_cast<uint64_t>(value));
  return text;
}

at::Tensor rows_of(const std::string& text, int64_t columns) {
  const auto count = static_cast<int64_t>(text.size() / 16);
  at::Tensor rows = at::empty({count / columns, columns}, at::kDouble);
  const auto value = host_numbers_to_write<double>(rows);
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] = std::bit_cast<double>(std::stoull(text.substr(i * 16, 16), nullptr, 16));
  }
  return rows;
}

void append(at::Tensor& rows, const at::Tensor& more) {
  if (!more.defined()) return;
  rows = rows.defined() ? at::cat({rows, more}) : more;
}

at::Tensor checked(const MetricSpec& spec, const at::Tensor& given, at::IntArrayRef sizes, const char* what) {
  const at::Tensor value = given.defined()
                               ? given.detach().to(at::kCPU, at::kDouble)
                               : at::zeros(sizes.front() < 0 ? at::IntArrayRef{0, sizes.back()} : sizes, at::kDouble);
  const bool fits = value.dim() == static_cast<int64_t>(sizes.size()) && value.sizes().back() == sizes.back();
  if (fits) return value;
  throw UsageError(
      "LS-METRIC",
      fmt::format("the metric '{}' gave {} of the shape {} in place of {}", spec.name, what,
                  fmt::format("[{}]", fmt::join(value.sizes().vec(), ", ")),
                  sizes.size() == 1 ? fmt::format("[{}]", sizes.back()) : fmt::format("[n, {}]", sizes.back())),
      "give what its MetricSpec says: .sums numbers, and rows of .columns");
}

/// LibTorch's errors, which do not know whose function they come from, say the metric's name.
MetricCounts updated(const MetricSpec& spec, const at::Tensor& output, const Batch& batch) {
  try {
    return spec.update(output, batch);
  } catch (c10::Error& error) {
    error.add_context(fmt::format("in the metric '{}'", spec.name));
    throw;
  }
}

std::map<std::string, double> results_of(const MetricSpec& spec, const MetricCounts& whole) {
  try {
    return spec.results(whole);
  } catch (c10::Error& error) {
    error.add_context(fmt::format(
        "in .results of the metric '{}', which also says what there is where nothing was counted", spec.name));
    throw;
  }
}

}  // namespace

void Totals::add(const Totals& other) {
  loss += other.loss;
  samples += other.samples;
  sums.resize(other.sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  rows.resize(other.rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) append(rows[i], other.rows[i]);
}

nlohmann::json Totals::to_json() const {
  nlohmann::json json{{"loss", json_of(loss)}, {"samples", samples}};
  for (const double sum : sums) json["sums"].push_back(json_of(sum));
  for (const at::Tensor& one : rows) {
    if (one.defined()) {
      json["rows"].push_back({{"columns", one.size(1)}, {"values", text_of(one)}});
    } else {
      json["rows"].push_back(nullptr);
    }
  }
  return json;
}

Totals Totals::from_json(const nlohmann::json& json) {
  Totals totals{number_of(json.at("loss")), json.at("samples").get<int64_t>()};
  for (const nlohmann::json& sum : json.value("sums", nlohmann::json::array())) totals.sums.push_back(number_of(sum));
  for (const nlohmann::json& one : json.value("rows", nlohmann::json::array())) {
    totals.rows.emplace_back();
    if (!one.is_null()) {
      totals.rows.back() = rows_of(one.at("values").get<std::string>(), one.at("columns").get<int64_t>());
    }
  }
  return totals;
}

MetricList::MetricList(std::vector<MetricSpec> specs) : specs_(std::move(specs)) {
  std::set<std::string> names;
  for (const MetricSpec& spec : specs_) {
    num_sums_ += spec.sums;
    const char* fault = spec.name.empty()                   ? "has no name"
                        : !spec.update || !spec.results     ? "lacks its .update or its .results"
                        : spec.sums < 0 || spec.columns < 0 ? "has a number of sums or columns below 0"
                        : spec.name == "loss"               ? "has the loss's name"
                        : !names.insert(spec.name).second   ? "has the name of another one"
                                                            : nullptr;
    if (fault == nullptr) continue;
    throw UsageError("LS-METRIC", fmt::format("the metric '{}' of a Trainer {}", spec.name, fault),
                     "give each metric a name of its own, an .update and a .results");
  }
}

PartCounts MetricList::none() const {
  PartCounts counts;
  if (num_sums_ > 0) counts.sums = at::zeros({num_sums_}, at::kDouble);
  counts.rows.resize(specs_.size());
  return counts;
}

void MetricList::count(PartCounts& counts, const at::Tensor& output, const Batch& batch) const {
  if (specs_.empty() || batch.samples() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = output.defined() ? output.detach() : output;
  int64_t first = 0;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const MetricSpec& spec = specs_[i];
    const MetricCounts counted = updated(spec, values, batch);
    if (spec.sums > 0) counts.sums.narrow(0, first, spec.sums).add_(checked(spec, counted.sums, {spec.sums}, "sums"));
    if (spec.columns > 0) append(counts.rows[i], checked(spec, counted.rows, {-1, spec.columns}, "rows"));
    first += spec.sums;
  }
}

void MetricList::add_part(PartCounts& sum, const PartCounts& part) {
  sum.loss = sum.loss.defined() && part.loss.defined() ? sum.loss + part.loss
             : sum.loss.defined()                      ? sum.loss
                                                       : part.loss;
  if (sum.sums.defined()) sum.sums.add_(part.sums);
  for (std::size_t i = 0; i < sum.rows.size(); ++i) append(sum.rows[i], part.rows[i]);
}

std::vector<at::Tensor> MetricList::rows_by_step(const Strategy& strategy, const WaitingCounts& steps,
                                                 std::size_t metric) const {
  // The number of the step stands in a column of its own.
  const int64_t columns = specs_[metric].columns;
  const auto mine = strategy.per_replica([&](ReplicaId r) {
    std::vector<at::Tensor> all{at::empty({0, columns + 1}, at::kDouble)};
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const at::Tensor rows = steps.rows(s, r, metric);
      if (!rows.defined()) continue;
      all.push_back(at::cat({rows, at::full({rows.size(0), 1}, static_cast<double>(s), at::kDouble)}, 1));
    }
    return at::cat(all);
  });
  const at::Tensor gathered = strategy.gather(mine);
  std::vector<at::Tensor> by_step;
  if (steps.size() == 1) return {gathered.narrow(1, 0, columns).contiguous()};
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const at::Tensor here = gathered.select(1, columns).eq(static_cast<double>(s)).nonzero().flatten();
    by_step.push_back(gathered.narrow(1, 0, columns).index_select(0, here));
  }
  return by_step;
}

std::vector<Totals> MetricList::bring_together(const Strategy& strategy,
                                               const std::vector<PerReplica<PartCounts>>& steps,
                                               const std::vector<int64_t>& samples) const {
  WaitingCounts counts;
  for (std::size_t s = 0; s < steps.size(); ++s) counts.add(steps[s], samples[s]);
  return bring_together(strategy, counts);
}

std::vector<Totals> MetricList::bring_together(const Strategy& strategy, const WaitingCounts& steps) const {
  std::vector<Totals> totals(steps.size());
  if (steps.empty()) return totals;
  const at::NoGradGuard no_grad;
  // Element by element a sum of stacked values is the sum of each, so that one call does for all steps.
  const auto sum_of = [&](const auto& stacked_of) {
    return strategy.reduce(Reduction::kSum, strategy.per_replica(stacked_of)).to(at::kCPU, at::kDouble).contiguous();
  };
  const at::Tensor losses = sum_of([&](ReplicaId r) { return steps.losses(r); });
  at::Tensor sums;
  if (num_sums_ > 0) sums = sum_of([&](ReplicaId r) { return steps.sums(r); });
  for (std::size_t s = 0; s < steps.size(); ++s) {
    totals[s].loss = host_numbers<double>(losses)[s] * static_cast<double>(steps.samples()[s]);
    totals[s].samples = steps.samples()[s];
    totals[s].rows.resize(specs_.size());
    if (num_sums_ == 0) continue;
    const double* const first = host_numbers<double>(sums).data() + static_cast<int64_t>(s) * num_sums_;
    totals[s].sums.assign(first, first + num_sums_);
  }
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].columns == 0) continue;
    const std::vector<at::Tensor> rows = rows_by_step(strategy, steps, i);
    for (std::size_t s = 0; s < steps.size(); ++s) totals[s].rows[i] = rows[s];
  }
  return totals;
}

Logs MetricList::logs_of(const Totals& totals, bool has_loss) const {
  Logs logs;
  if (has_loss) logs["loss"] = totals.samples == 0 ? 0 : totals.loss / static_cast<double>(totals.samples);
  std::size_t first = 0;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const MetricSpec& spec = specs_[i];
    MetricCounts whole{at::zeros({spec.sums}, at::kDouble), at::zeros({0, spec.columns}, at::kDouble)};
    for (int64_t s = 0; s < spec.sums && first < totals.sums.size(); ++s) {
      host_numbers_to_write<double>(whole.sums)[static_cast<std::size_t>(s)] = totals.sums[first++];
    }
    if (i < totals.rows.size() && totals.rows[i].defined()) whole.rows = totals.rows[i];
    for (const auto& [name, value] : results_of(spec, whole)) logs[name] = value;
  }
  return logs;
}

std::vector<std::string> MetricList::names(bool has_loss) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : logs_of({}, has_loss)) names.push_back(name);
  return names;
}

}  // namespace lockstep::internal::train
