// The task of the job 'evaluator': it reads the checkpoints of a run, and connects to nobody.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/follow_checkpoints.h"

namespace lockstep::internal::inline server {

using OnCheckpoint = std::function<void(const std::filesystem::path&, const RestoreInfo&)>;

/// Whether training has ended, so that no other checkpoint comes. `lockstep run` says so by LOCKSTEP_END_NOTICE.
/// Without it, training has ended where nobody has held the folders for a minute, and somebody did before.
class TrainingEnd {
 public:
  using Clock = std::chrono::steady_clock;

  /// Reads LOCKSTEP_END_NOTICE.
  TrainingEnd();

  /// A PeerError (LS-EVALUATOR-ALONE) as serve_as_evaluator() says.
  bool has_come(const std::vector<CheckpointFollower>& followers, Clock::time_point now = Clock::now());
  /// Waits for a second, or until the launcher says it.
  void wait() const;

 private:
  int notice_ = -1;  // of the launcher; -1: there is none
  bool was_held_ = false;
  Clock::time_point since_ = Clock::now();  // the folders are as they are now
};

/// Serves as the evaluator until training has ended: restores each checkpoint of the strategy's managers, only the
/// newest where it is behind, and calls `functions`. Gives the exit code of the program: 0, or 75 after a request for a
/// stop. A UsageError (LS-OPTION) where the strategy has no manager; a PeerError (LS-EVALUATOR-ALONE) where, without a
/// launcher that tells the end, nobody has held a folder for an hour. Throws what a function throws.
int serve_as_evaluator(Strategy& strategy, const std::vector<OnCheckpoint>& functions);

}  // namespace lockstep::internal::server
