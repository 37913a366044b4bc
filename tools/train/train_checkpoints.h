// The checkpoints of `lockstep train`: when it saves, and which folders it takes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/lockstep.h"

namespace lockstep::tools {

/// What `--checkpoint-every` means: "100" (steps), "90s", "10m", "2h", or empty: as often as saving takes at most one
/// hundredth of the time. A UsageError for another text.
callbacks::CheckpointsOptions checkpoint_schedule(const std::string& every);

/// The newest whole checkpoint in the folder. A call of all workers.
std::optional<std::filesystem::path> newest_checkpoint(const Strategy& strategy, const std::string& directory);

/// The callback that saves, and resumes. A save that the disk refuses is told on standard error; that of the last one
/// is told to `on_last_failed` as well, and the run goes on.
std::shared_ptr<Callback> saving(const Strategy& strategy, const std::string& directory, const std::string& every,
                                 std::function<void()> on_last_failed);

}  // namespace lockstep::tools
