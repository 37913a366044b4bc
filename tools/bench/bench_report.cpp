#include "tools/bench/bench_report.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/choice/make_strategy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/replica/pool/lanes.h"
#include "tools/console.h"

namespace lockstep::tools {

std::unique_ptr<Strategy> strategy_of(const BenchOptions& options, const std::string& name, const std::string& engine,
                                      WireFormat wire) {
  StrategyOptions all{.devices = options.devices,
                      .replicas = options.replicas,
                      .threads_per_replica = static_cast<int>(options.threads_per_replica),
                      .wire = wire};
  if (!engine.empty()) all.engine = engine;
  return make_strategy(name, all);
}

std::optional<Calibration> limits_of(const BenchOptions& options, const Strategy& strategy) {
  if (options.no_calibration) return std::nullopt;
  Calibration limits = calibrate(static_cast<int>(strategy.devices().size()));
  print_table(table_of(limits));
  print_table({{"", ""}});
  return limits;
}

nlohmann::ordered_json report_of(const std::string& bench, const Strategy& strategy,
                                 const std::optional<Calibration>& limits) {
  nlohmann::ordered_json report{
      {"bench", bench},
      {"processor", processor_name()},
      {"cores", internal::cores_of_this_process().size()},
      {"software", internal::platform_description()},
      {"fingerprint", internal::platform_fingerprint()},
      {"replicas", strategy.num_replicas()},
      {"devices", strategy.devices()},
  };
  if (limits) report["calibration"] = json_of(*limits);
  return report;
}

TimingOptions timing_of(const BenchOptions& options) {
  return {.blocks = static_cast<int>(options.blocks), .block_seconds = options.block_seconds};
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

void check_fits(double bytes, const std::string& flag) {
  const auto memory = static_cast<double>(physical_memory());
  if (bytes <= 0.9 * memory) return;
  throw UsageError("LS-FLAG",
                   fmt::format("{} takes {:.1f} GB, and this machine has {:.1f}", flag, bytes / 1e9, memory / 1e9),
                   "choose smaller sizes");
}

int64_t peak_memory() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && in >> kib) return kib * 1024;
  }
  return 0;
}

void forget_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace lockstep::tools
