#include "lockstep/server/evaluator.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/exit_codes.h"
#include "lockstep/core/process/stop_request.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

namespace {

constexpr std::chrono::seconds kBetweenLooks(1);
/// How long a chief that is started again may take, and how long the first save.
constexpr std::chrono::seconds kUntilEnd(60);
constexpr std::chrono::hours kUntilFirst(1);

/// The pipe that ends when training does. Its number stands in the environment with its inode: a program that this one
/// has started may have another file there.
int pipe_from_launcher() {
  const char* const text = std::getenv("LOCKSTEP_END_NOTICE");
  int file = -1;
  unsigned long long inode = 0;
  if (text == nullptr || std::sscanf(text, "%d:%llu", &file, &inode) != 2) return -1;
  struct stat what = {};
  return fstat(file, &what) == 0 && S_ISFIFO(what.st_mode) && what.st_ino == inode ? file : -1;
}

}  // namespace

TrainingEnd::TrainingEnd() : notice_(pipe_from_launcher()) {}

bool TrainingEnd::has_come(const std::vector<CheckpointFollower>& followers, Clock::time_point now) {
  if (notice_ >= 0) {
    pollfd polled{notice_, POLLIN, 0};
    return poll(&polled, 1, 0) == 1;
  }
  if (std::any_of(followers.begin(), followers.end(), [](const auto& one) { return one.is_held(); })) {
    was_held_ = true;
    since_ = now;
  }
  if (was_held_) return now - since_ > kUntilEnd;
  if (now - since_ <= kUntilFirst) return false;
  throw PeerError("LS-EVALUATOR-ALONE", "no run has saved a checkpoint for an hour, where the evaluator looks for them",
                  "start the other tasks, let all use one folder, or start the evaluator by: lockstep run --evaluator");
}

void TrainingEnd::wait() const {
  pollfd polled{notice_, POLLIN, 0};  // nothing is polled where it is -1
  poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kBetweenLooks).count()));
}

int serve_as_evaluator(Strategy& strategy, const std::vector<OnCheckpoint>& functions) {
  if (functions.empty()) {
    log(LogLevel::kWarning, "this task is the evaluator, and on_checkpoint was given no function: it ends");
    return 0;
  }
  const std::vector<const CheckpointManager*> managers = managers_of(strategy);
  if (managers.empty()) {
    throw UsageError("LS-OPTION", "on_checkpoint was given a function, and the strategy has no CheckpointManager",
                     "make the CheckpointManager on all tasks, before coordinate");
  }
  std::vector<CheckpointFollower> followers;
  for (const CheckpointManager* one : managers) {
    followers.emplace_back(CheckpointAccess::files(one->checkpoint()), one->directory());
  }
  TrainingEnd end;
  for (;;) {
    const bool is_last = end.has_come(followers);  // before the look, so that none is overlooked
    for (std::size_t i = 0; i < managers.size(); ++i) {
      RestoreInfo info;
      // A run of other workers has other replicas where these go in step.
      const auto restore = [&](const std::filesystem::path& path) {
        info = managers[i]->checkpoint().restore(path, {.allow_other_replicas = true});
      };
      const auto use = [&](const std::filesystem::path& path) {
        for (const OnCheckpoint& function : functions) function(path, info);
      };
      while (!is_stop_requested() && followers[i].look(restore, use)) continue;
    }
    if (is_stop_requested()) return static_cast<int>(ExitCode::kRestartable);
    if (is_last) return 0;
    end.wait();
  }
}

}  // namespace lockstep::internal::server
