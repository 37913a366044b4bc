#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/filled_slots.h"
#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/folder/write_checkpoint.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/read_together.h"
#include "lockstep/checkpoint/restore/restored_slices.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

void require_free(const internal::Tracked& tracked, const std::string& name) {
  if (!tracked.data.contains(name) && !tracked.values.contains(name)) return;
  throw UsageError("LS-NAME-TAKEN",
                   fmt::format("Checkpoint::track was given the name '{}' a second time", internal::shown(name)),
                   "give each tracked value a name of its own");
}

}  // namespace

Checkpoint::Checkpoint(Strategy& strategy)
    : strategy_(&strategy), tracked_(std::make_shared<internal::Tracked>()), files_(&internal::host_files()) {}

void Checkpoint::track(const std::string& name, const DistributedDataset& data) {
  internal::require_at_rest(*strategy_, *tracked_, "Checkpoint::track");
  require_free(*tracked_, name);
  data.cursor();  // an empty handle is refused here
  internal::give_to_tracked(*strategy_, name, data);
  tracked_->data.emplace(name, data);
}

void Checkpoint::track_text(const std::string& name, std::function<std::string()> save,
                            std::function<void(const std::string&)> load) {
  internal::require_at_rest(*strategy_, *tracked_, "Checkpoint::track");
  require_free(*tracked_, name);
  const internal::Tracked::Value value{std::move(save), std::move(load)};
  internal::give_to_tracked(*strategy_, name, value);
  tracked_->values.emplace(name, value);
}

std::vector<std::string> Checkpoint::waiting() const {
  internal::require_at_rest(*strategy_, *tracked_, "Checkpoint::waiting");
  return internal::waiting_names(*strategy_);
}

void Checkpoint::save(const fs::path& path) const {
  internal::require_at_rest(*strategy_, *tracked_, "Checkpoint::save");
  const auto reading = internal::reading(*strategy_);
  const auto phase = internal::told_phase(*strategy_, WorkerPhase::Kind::kSave);
  const internal::Image image = internal::take_image(*strategy_, *tracked_);  // nothing trains while it is written
  internal::WritePlan plan;
  internal::all_or_none(*strategy_, "Checkpoint::save", [&] { plan = internal::plan_of(image); });
  const internal::FilledSlots filled(*strategy_, plan, {0});
  strategy_->on_chief([&] { internal::save_plan(*files_, path, image.run, plan); });
}

RestoreInfo Checkpoint::restore(const fs::path& path, const RestoreOptions& options) const {
  return internal::CheckpointAccess::restore_first(*this, {path}, options);
}

RestoreInfo internal::CheckpointAccess::restore_first(const Checkpoint& checkpoint,
                                                      const std::vector<fs::path>& folders,
                                                      const RestoreOptions& options, const ListFolders& list_again) {
  const Strategy& strategy = *checkpoint.strategy_;
  require_at_rest(strategy, *checkpoint.tracked_, "Checkpoint::restore");
  ServedState* const served = served_state_of(strategy);
  const std::shared_ptr<void> changing = served == nullptr ? nullptr : served->changing("Checkpoint::restore");
  const auto phase = told_phase(strategy, WorkerPhase::Kind::kRestore);
  const RestoredSlices slices(strategy, *checkpoint.tracked_);
  const NeededBytes needed = [&](const RecordedTensor& saved, const TensorPlace& place) {
    return slices.needed(saved, place);
  };
  const auto [image, what] = read_first_whole(strategy, *checkpoint.files_, folders, options, needed, list_again);
  return apply(image, strategy, *checkpoint.tracked_, slices, options, what);
}

}  // namespace lockstep
