#include "tools/train/train_checkpoints.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/folder/files.h"
#include "tools/disk_error.h"

namespace lockstep::tools {

callbacks::CheckpointsOptions checkpoint_schedule(const std::string& every) {
  if (every.empty()) return {};
  int64_t number = 0;
  const char* const end = every.data() + every.size();
  const auto [unit, error] = std::from_chars(every.data(), end, number);
  const std::string_view rest(unit, static_cast<std::size_t>(end - unit));
  const int64_t seconds = rest == "s" ? 1 : rest == "m" ? 60 : rest == "h" ? 3600 : 0;
  constexpr int64_t kMost = int64_t{1} << 40;
  if (error != std::errc() || number < 1 || number > kMost || (!rest.empty() && seconds == 0)) {
    throw UsageError("LS-FLAG", fmt::format("--checkpoint-every {} is no number of steps and no time", every),
                     "give steps (100), or a time (90s, 10m, 2h)");
  }
  if (rest.empty()) return {.every_steps = number};
  return {.every_seconds = static_cast<double>(number * seconds)};
}

std::optional<std::filesystem::path> newest_checkpoint(const Strategy& strategy, const std::string& directory) {
  const std::string path = strategy.on_chief([&]() -> std::string {
    const auto found = internal::whole_checkpoints_in(internal::host_files(), directory);
    return found.empty() ? std::string() : found.back().path.string();
  });
  if (path.empty()) return std::nullopt;
  return path;
}

std::shared_ptr<Callback> saving(const Strategy& strategy, const std::string& directory, const std::string& every,
                                 std::function<void()> on_last_failed) {
  using callbacks::FailedSave;
  callbacks::CheckpointsOptions options = checkpoint_schedule(every);
  options.directory = directory;
  options.on_failed_save = [is_chief = strategy.is_chief(), on_last_failed = std::move(on_last_failed)](
                               const std::exception& error, FailedSave which) {
    say_disk_error(is_chief,
                   which == FailedSave::kTrainingGoesOn   ? "a checkpoint could not be saved, training goes on"
                   : which == FailedSave::kLastOneFollows ? "an earlier save failed, the last one follows"
                                                          : "the last checkpoint could not be saved",
                   error);
    if (which == FailedSave::kLastOne) on_last_failed();
  };
  return callbacks::checkpoints(std::move(options));
}

}  // namespace lockstep::tools
