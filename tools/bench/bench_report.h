// What all benches share: how they begin and how they report.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/strategy/strategy.h"
#include "tools/bench/bench.h"
#include "tools/bench/calibration.h"
#include "tools/bench/timing.h"

namespace lockstep::tools {

/// The strategy that a bench's flags describe.
std::unique_ptr<Strategy> strategy_of(const BenchOptions& options, const std::string& name = "mirrored",
                                      const std::string& engine = "", WireFormat wire = WireFormat::kExact);

/// Calibrates on as many threads as the strategy has lanes, and prints it; nothing where the flags say so.
std::optional<Calibration> limits_of(const BenchOptions& options, const Strategy& strategy);

/// What all reports begin with: the bench, the machine, its limits, and the replicas.
nlohmann::ordered_json report_of(const std::string& bench, const Strategy& strategy,
                                 const std::optional<Calibration>& limits);

/// The blocks and their length.
TimingOptions timing_of(const BenchOptions& options);

/// "87 %".
std::string percent(double share);

/// A UsageError where `bytes` are more than this machine has; `flag` asked for them.
void check_fits(double bytes, const std::string& flag);

/// The largest part of memory that this process has had since forget_peak_memory(); 0 where the system does not say.
int64_t peak_memory();
void forget_peak_memory();

}  // namespace lockstep::tools
