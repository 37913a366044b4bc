#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <exception>
#include <functional>
#include <set>
#include <tuple>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/strict_json.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

void require_free(const internal::Tracked& tracked, const std::string& name) {
  if (!tracked.data.contains(name) && !tracked.values.contains(name)) return;
  throw UsageError("LS-NAME-TAKEN",
                   fmt::format("Checkpoint::track was given the name '{}' a second time", internal::shown(name)),
                   "give each tracked value a name of its own");
}

using Reads = std::function<bool(const internal::RecordedTensor&)>;

/// Which tensors are read, of those whose names are wanted: those that the program has, where the others are passed
/// over; otherwise an empty function, which stands for all.
Reads reads_of(const Strategy& strategy, const RestoreOptions& options) {
  if (!options.allow_unexpected || options.restore_on_create) return {};
  std::set<internal::KindAndName> here;
  for (const StateItem& item : strategy.state_items()) here.emplace(internal::kind_text(item.kind), item.name);
  return [here = std::move(here)](const internal::RecordedTensor& one) { return here.contains({one.kind, one.name}); };
}

/// The first whole one of `folders`, with its name.
std::pair<internal::Image, std::string> first_whole(internal::Files& files, const std::vector<fs::path>& folders,
                                                    const RestoreOptions& options, const Reads& reads) {
  std::exception_ptr first;
  for (const fs::path& folder : folders) {
    try {
      auto image = internal::load_image(
          files, folder, [&](const std::string& name) { return internal::is_wanted(options.only, name); }, reads);
      const std::string what = fmt::format("the checkpoint '{}'", folder.string());
      if (first) {
        internal::log(LogLevel::kWarning, fmt::format("{} is restored instead: {}", what, message_of(first)));
      }
      return {std::move(image), what};
    } catch (const DataError&) {
      if (!first) first = std::current_exception();
    }
  }
  std::rethrow_exception(first);
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
  const auto phase = internal::told_phase(*strategy_, WorkerPhase::Kind::kSave);
  const internal::Image image = internal::capture(*strategy_, *tracked_);  // nothing trains while it is written
  strategy_->on_chief([&] { internal::save_image(*files_, path, image); });
}

RestoreInfo Checkpoint::restore(const fs::path& path, const RestoreOptions& options) const {
  return internal::CheckpointAccess::restore_first(*this, {path}, options);
}

RestoreInfo internal::CheckpointAccess::restore_first(const Checkpoint& checkpoint,
                                                      const std::vector<fs::path>& folders,
                                                      const RestoreOptions& options) {
  const Strategy& strategy = *checkpoint.strategy_;
  require_at_rest(strategy, *checkpoint.tracked_, "Checkpoint::restore");
  const auto phase = told_phase(strategy, WorkerPhase::Kind::kRestore);
  const Reads reads = reads_of(strategy, options);
  if (strategy.num_workers() == 1) {
    const auto [image, what] = first_whole(*checkpoint.files_, folders, options, reads);
    return apply(image, strategy, *checkpoint.tracked_, options, what);
  }
  // The chief reads, and sends the manifest, the tensors, and which of the manifest's they are.
  const auto [text, chosen, tensors, what] = strategy.on_chief([&] {
    auto [image, name] = first_whole(*checkpoint.files_, folders, options, reads);
    Manifest manifest{.run = std::move(image.run)};
    std::vector<std::tuple<std::string, std::string, int64_t, bool>> ids;  // the last: whether it has a value
    std::vector<at::Tensor> values;
    for (ImageTensor& one : image.tensors) {
      ids.emplace_back(std::move(one.kind), std::move(one.name), one.replica, one.value.defined());
      if (one.value.defined()) values.push_back(std::move(one.value));
    }
    return std::tuple(encode_manifest(manifest), std::move(ids), std::move(values), std::move(name));
  });
  Image image{.run = decode_manifest(text, what).run};
  std::size_t next = 0;
  for (const auto& [kind, name, replica, has_value] : chosen) {
    image.tensors.push_back({kind, name, replica, has_value ? tensors.at(next++) : at::Tensor()});
  }
  return apply(image, strategy, *checkpoint.tracked_, options, what);
}

}  // namespace lockstep
