// What a report shows of a run, and the same as JSON, which the report's file carries.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/train/report/thinned_curve.h"

namespace lockstep::internal::inline train {

/// How a run stands. The words are part of the JSON.
enum class RunOutcome : uint8_t { kRunning, kFinished, kStopped, kFailed };
std::string_view word_of(RunOutcome state);

struct ReportFinding {
  std::string code = {};
  int64_t step = 0;
  int64_t count = 0;
  std::string text = {};  // what was noticed; a line break comes before the cure
};

struct ReportCheckpoint {
  int64_t step = 0;
  uint64_t bytes = 0;
  bool is_best = false;
};

struct ReportVariable {
  std::string name = {};
  std::string shape = {};
  int64_t elements = 0;
  double norm_before = 0;                              // of its values as the run began
  double norm = 0;                                     // and now
  std::optional<double> gradient_norm = std::nullopt;  // of its gradient, where that was looked at last
};

/// The logs of an epoch's end.
struct ReportEpoch {
  int64_t epoch = 0;
  int64_t step = 0;  // steps done by then
  std::map<std::string, double> logs = {};
};

/// Everything that a report has. Times are seconds.
struct RunReport {
  std::string title = {};
  RunOutcome state = RunOutcome::kRunning;
  std::string why = {};      // it ended, or was stopped, or failed
  std::string began = {};    // UTC
  std::string written = {};  // UTC
  int64_t steps = 0;         // done
  int64_t samples = 0;
  double seconds = 0;        // of this process
  double input_seconds = 0;  // of these, waiting for input
  double validation_seconds = 0;
  double callback_seconds = 0;
  /// Shares of the steps' time: computing, updates, communication, waiting for other lanes and workers. None of a run
  /// that did not measure them.
  std::map<std::string, double> step_shares = {};
  std::vector<int64_t> resumes = {};  // steps at which a process went on
  /// Training's values by name, of each step: "loss", metrics, "learning_rate", "gradient_norm", "samples_per_second".
  std::map<std::string, ThinnedCurve> curves = {};
  std::map<std::string, ThinnedCurve> validation = {};  // by plain name, at the steps done
  std::vector<std::string> metrics = {};                // names, in their order; the first is the main one
  std::vector<std::string> lower_is_better = {};        // of these and "loss"
  std::vector<ReportEpoch> epochs = {};
  std::vector<ReportFinding> findings = {};
  std::vector<ReportCheckpoint> checkpoints = {};
  std::vector<ReportVariable> variables = {};
  /// What ran, as name and text: command, strategy, fingerprint, digests.
  std::vector<std::pair<std::string, std::string>> facts = {};

  bool is_lower_better(const std::string& name) const;
  nlohmann::json to_json() const;
  /// What to_json() gave; members that are absent keep their defaults. Throws what the JSON library throws for values
  /// of another type.
  static RunReport from_json(const nlohmann::json& json);
};

}  // namespace lockstep::internal::train
