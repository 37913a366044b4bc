// The checkpoints of `lockstep train`: where it goes on from, and when it saves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/lockstep.h"
#include "tools/train/checkpoint_schedule.h"
#include "tools/train/train_options.h"

namespace lockstep::tools {

/// What the loop of `lockstep train` counts, and goes on counting after a resume.
struct TrainCounts {
  int64_t samples = 0;
  double epoch_loss = 0;    // the sum over the epoch's steps so far
  int64_t epoch_steps = 0;  // of the epoch so far
};

/// Does nothing without --checkpoint-dir. All workers make the same calls.
class TrainCheckpoints {
 public:
  /// Takes the folder, and restores its newest checkpoint with --resume. The chief calls `before_save` before each
  /// save. A UsageError where the folder has checkpoints and the run does not resume. `counts` outlives this object.
  TrainCheckpoints(const TrainOptions& options, Strategy& strategy, TrainCounts& counts,
                   std::function<void()> before_save);

  bool wanted() const { return manager_.has_value(); }
  /// What there is to say of the start; empty where there is nothing.
  const std::string& beginning() const { return beginning_; }
  /// Saves where it is due. A save that the disk refuses is a warning, and the training goes on.
  void after_step();
  /// Saves the present state, unless that was saved, and waits until it is durable. An error of an earlier save is a
  /// warning; that of this one is thrown.
  void save_now();
  /// The folder of the last save.
  std::string last() const { return last_.string(); }

 private:
  void save();

  Strategy& strategy_;
  CheckpointSchedule schedule_;
  std::function<void()> before_save_;
  std::optional<CheckpointManager> manager_;
  std::string beginning_;
  std::filesystem::path last_;
  int64_t saved_step_ = -1;
};

}  // namespace lockstep::tools
