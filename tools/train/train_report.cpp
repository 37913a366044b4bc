#include "tools/train/train_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/fingerprint.h"

namespace lockstep::tools {

namespace {

double samples_per_second(const TrainReport& report) {
  return static_cast<double>(report.samples_of_process) / std::max(report.seconds, 1e-9);
}

/// "LS-CODE: text", for each finding of a strategy that has a list of them.
template <class S>
std::vector<std::string> findings_of(const S& strategy) {
  std::vector<std::string> lines;
  if constexpr (requires { strategy.findings(); }) {
    for (const auto& finding : strategy.findings()) lines.push_back(fmt::format("{}: {}", finding.code, finding.text));
  }
  return lines;
}

/// An item's values, for all replicas of all workers where each replica has its own.
std::vector<at::Tensor> values_of_all(const Strategy& strategy, const StateItem& item) {
  std::vector<at::Tensor> mine = item.read();
  if (strategy.num_workers() == 1 || item.kind != StateItem::Kind::kOnRead) return mine;
  std::vector<at::Tensor> all;
  const PerReplica<at::Tensor> local =
      strategy.per_replica([&, next = std::size_t{0}](ReplicaId) mutable { return mine[next++]; });
  for (int64_t r = 0; r < strategy.num_replicas(); ++r) {
    const bool is_here = r >= local.first_replica() && r - local.first_replica() < static_cast<int64_t>(local.size());
    all.push_back(strategy.broadcast(r, is_here ? local[r] : at::Tensor()));
  }
  return all;
}

/// The findings of all workers. Those of another worker than the chief begin with its name.
std::vector<std::string> findings_of_all(const Strategy& strategy) {
  const std::vector<std::string> mine = findings_of(strategy);
  if (strategy.num_workers() == 1) return mine;
  std::string text;
  for (const std::string& one : mine) {
    text += strategy.is_chief() ? one + "\n" : fmt::format("worker {}: {}\n", strategy.worker_index(), one);
  }
  // The first local replica has the worker's text.
  const auto texts = strategy.per_replica([&, is_first = true](ReplicaId) mutable {
    const std::string part = std::exchange(is_first, false) ? text : std::string();
    at::Tensor bytes = at::empty({static_cast<int64_t>(part.size())}, at::kByte);
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(bytes.data_ptr()));
    return bytes;
  });
  const at::Tensor all = strategy.gather(texts);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(all.data_ptr()), all.nbytes()));
  std::vector<std::string> findings;
  for (std::string line; std::getline(lines, line);) findings.push_back(line);
  return findings;
}

/// What connects the workers, as the strategy's description names it: "tls", "shared-memory".
std::string engine_of(const Strategy& strategy) {
  if (strategy.num_workers() == 1) return "in-process";
  constexpr std::string_view kBefore = "workers are connected by ";
  const std::string text = strategy.describe();
  const std::size_t found = text.find(kBefore);
  if (found == std::string::npos) return "unknown";
  const std::size_t begin = found + kBefore.size();
  return text.substr(begin, text.find_first_of(":,\n", begin) - begin);
}

}  // namespace

void describe_run(TrainReport& report, const TrainOptions& options, const Strategy& strategy) {
  report.model = options.model.name;
  report.data = options.data;
  report.optimizer = options.optimizer;
  report.strategy = options.strategy;
  report.replicas = strategy.num_replicas();
  report.devices = strategy.devices();
  report.workers = strategy.num_workers();
  report.engine = engine_of(strategy);
  report.global_batch = options.global_batch;
  report.seed = options.seed;
  report.fingerprint = internal::platform_fingerprint();
  report.findings = findings_of_all(strategy);
}

void digest_state(TrainReport& report, const Strategy& strategy) {
  using Kind = StateItem::Kind;
  std::vector<StateItem> items = strategy.state_items();
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto digest_of = [&](std::initializer_list<Kind> kinds) {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (const StateItem& item : items) {
      if (std::find(kinds.begin(), kinds.end(), item.kind) == kinds.end()) continue;
      for (const at::Tensor& value : values_of_all(strategy, item)) named.emplace_back(item.name, value);
    }
    return sha256_of(named);
  };
  report.weights_sha256 = digest_of({Kind::kMirrored});
  report.state_sha256 = digest_of({Kind::kOnRead});
  report.optimizer_sha256 = digest_of({Kind::kSlot, Kind::kStepCount});
}

std::vector<std::pair<std::string, std::string>> table_of(const TrainReport& report) {
  std::vector<std::pair<std::string, std::string>> rows{
      {"strategy", fmt::format("{}, {} on [{}]", report.strategy, internal::counted(report.replicas, "replica"),
                               fmt::join(report.devices, ", "))},
      {"model, data", fmt::format("{}, {}", report.model, report.data)},
      {"steps, samples", fmt::format("{}, {}", report.steps, report.samples)},
      {"samples/s", fmt::format("{:.1f}", samples_per_second(report))},
      {"waiting for input", fmt::format("{:.2f} % of the time", 100 * report.input_stall)},
      {"train loss", fmt::format("{:.5f}", report.train_loss)},
      {"evaluation loss", fmt::format("{:.5f}", report.eval_loss)},
      {"evaluation accuracy", fmt::format("{:.2f} %", 100 * report.eval_accuracy)},
      {"weights sha256", report.weights_sha256},
      {"optimizer sha256", report.optimizer_sha256},
      {"state sha256", report.state_sha256},
      {"fingerprint", report.fingerprint},
  };
  for (const std::string& finding : report.findings) rows.emplace_back("finding", finding);
  return rows;
}

std::string json_of(const TrainReport& report) {
  const nlohmann::ordered_json json{
      {"model", report.model},
      {"data", report.data},
      {"optimizer", report.optimizer},
      {"strategy", report.strategy},
      {"replicas", report.replicas},
      {"devices", report.devices},
      {"workers", report.workers},
      {"engine", report.engine},
      {"global_batch", report.global_batch},
      {"seed", report.seed},
      {"steps", report.steps},
      {"samples", report.samples},
      {"samples_per_second", samples_per_second(report)},
      {"input_stall", report.input_stall},
      {"train_loss", report.train_loss},
      {"eval_loss", report.eval_loss},
      {"eval_accuracy", report.eval_accuracy},
      {"weights_sha256", report.weights_sha256},
      {"optimizer_sha256", report.optimizer_sha256},
      {"state_sha256", report.state_sha256},
      {"fingerprint", report.fingerprint},
      {"findings", report.findings},
  };
  return json.dump(2) + "\n";
}

}  // namespace lockstep::tools
