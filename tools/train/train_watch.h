// What `lockstep train` does beside its fit: the log of samples, and what its report counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/lockstep.h"
#include "tools/train/sample_log.h"
#include "tools/train/train_options.h"

namespace lockstep::tools {

/// The chief's has the log. All workers' count.
class TrainWatch final : public Callback {
 public:
  /// Keeps references to the options and the log.
  TrainWatch(const TrainOptions& options, SampleLog& log);

  std::string name() const override { return "lockstep train"; }
  void on_fit_resume(Trainer& trainer, const Logs& logs) override;
  void on_epoch_begin(Trainer& trainer, const Logs& logs) override;
  void on_step_end(Trainer& trainer, const Logs& logs) override;
  void on_epoch_end(Trainer& trainer, const Logs& logs) override;
  /// What was logged before a checkpoint is in the file before the checkpoint is.
  nlohmann::json state() const override;
  void load(const nlohmann::json& state) override;

  /// The mean over the last epoch's steps.
  double train_loss() const;
  /// From the first step of this process to the last one.
  double seconds() const { return seconds_; }
  /// Trained on by this process.
  int64_t samples() const { return samples_; }

 private:
  void begin(const Trainer& trainer);
  void log_samples(const Trainer& trainer);

  const TrainOptions& options_;
  SampleLog& log_;
  std::optional<std::chrono::steady_clock::time_point> began_;
  double seconds_ = 0;
  double epoch_loss_ = 0;    // the sum over the epoch's steps so far
  int64_t epoch_steps_ = 0;  // of the epoch so far
  int64_t samples_ = 0;
};

}  // namespace lockstep::tools
