#include "tools/train/train_checkpoints.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/disk_error.h"

namespace lockstep::tools {

TrainCheckpoints::TrainCheckpoints(const TrainOptions& options, Strategy& strategy, TrainCounts& counts,
                                   std::function<void()> before_save)
    : strategy_(strategy), schedule_(options.checkpoint_every), before_save_(std::move(before_save)) {
  if (options.checkpoint_dir.empty()) return;
  Checkpoint checkpoint(strategy);
  checkpoint.track(
      "lockstep train",
      [&counts] {
        return nlohmann::json{
            {"samples", counts.samples}, {"epoch_loss", counts.epoch_loss}, {"epoch_steps", counts.epoch_steps}};
      },
      [&counts](const nlohmann::json& json) {
        counts = {json.at("samples").get<int64_t>(), json.at("epoch_loss").get<double>(),
                  json.at("epoch_steps").get<int64_t>()};
      });
  manager_.emplace(checkpoint, CheckpointManagerOptions{.directory = options.checkpoint_dir});
  manager_->claim();
  const auto latest = manager_->latest();
  if (!options.resume) {
    if (!latest) return;
    throw UsageError("LS-FLAG",
                     fmt::format("--checkpoint-dir {} has checkpoints of an earlier run", options.checkpoint_dir),
                     "go on from the newest with --resume, or choose another folder");
  }
  const auto restored = manager_->restore_latest();
  beginning_ = restored
                   ? fmt::format("goes on after step {}, from {}", restored->step, options.checkpoint_dir)
                   : fmt::format("there is no checkpoint in {}: starts from the beginning", options.checkpoint_dir);
  if (restored) saved_step_ = restored->step;
  if (latest) last_ = *latest;
}

void TrainCheckpoints::save() {
  strategy_.on_chief(before_save_);  // where it fails, no worker goes on to save
  last_ = manager_->save();
  saved_step_ = strategy_.step();
  schedule_.saved(manager_->last_save_seconds());
}

void TrainCheckpoints::after_step() {
  if (!manager_) return;
  if (!schedule_.is_due(strategy_, strategy_.step(), [this] { return manager_->last_save_seconds(); })) return;
  const bool is_saved =
      write_or_say(strategy_.is_chief(), "a checkpoint could not be saved, training goes on", [this] { save(); });
  if (!is_saved) schedule_.saved(manager_->last_save_seconds());
}

void TrainCheckpoints::save_now() {
  if (!manager_) return;
  if (!write_or_say(strategy_.is_chief(), "an earlier save failed, the last one follows", [this] { manager_->wait(); }))
    saved_step_ = -1;
  if (saved_step_ != strategy_.step()) save();
  manager_->wait();
}

}  // namespace lockstep::tools
