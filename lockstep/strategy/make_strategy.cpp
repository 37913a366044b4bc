#include "lockstep/strategy/make_strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/resolve_tuning.h"

namespace lockstep {

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names{"one-device", "mirrored", "multi-worker", "central-storage"};
  return names;
}

namespace {

/// Options for several workers, given to a strategy of one process, would be lost without a word.
void require_one_worker(const std::string& name, const StrategyOptions& options) {
  const int64_t workers = options.cluster ? options.cluster->num_workers() : 1;
  if (workers == 1) return;
  const char* const why = name == "central-storage"
                              ? "; its one copy of the variables lies in one process, where the others cannot read it"
                              : "";
  throw UsageError("LS-OPTION",
                   fmt::format("{} was given a cluster of {} workers and runs in one process{}", name, workers, why),
                   "choose the strategy multi-worker, or leave .cluster out");
}

/// An option that the strategy does not have would be lost without a word. Call it before .tuning is resolved, so that
/// the message has the option as the program gave it.
void require_own_options(const std::string& name, const StrategyOptions& options) {
  struct Option {
    const char* name;
    bool is_given;
    const char* strategy;         // which has it
    const char* other = nullptr;  // which has it too
  };
  const StrategyOptions defaults;
  const Tuning& tuning = options.tuning;
  const std::array<Option, 11> all{{
      {".storage", options.storage != defaults.storage, "central-storage"},
      {".engine", options.engine != defaults.engine, "multi-worker"},
      {".timeouts", options.timeouts != defaults.timeouts, "multi-worker"},
      {".update_form", options.update_form != defaults.update_form, "multi-worker"},
      {".wire", options.wire != defaults.wire, "multi-worker"},
      {".slots", options.slots != defaults.slots, "multi-worker"},
      {".device", options.device != defaults.device, "one-device"},
      {".copies", options.copies != defaults.copies, "mirrored", "multi-worker"},
      {".tuning.update_form", tuning.update_form.value_or(defaults.update_form) != defaults.update_form,
       "multi-worker"},
      {".tuning.slots", tuning.slots.value_or(defaults.slots) != defaults.slots, "multi-worker"},
      {".tuning.copies", tuning.copies.value_or(defaults.copies) != defaults.copies, "mirrored", "multi-worker"},
  }};
  for (const Option& option : all) {
    if (!option.is_given || name == option.strategy || (option.other && name == option.other)) continue;
    throw UsageError("LS-OPTION",
                     option.other
                         ? fmt::format("{} was given {}, which only {} and {} have", name, option.name, option.strategy,
                                       option.other)
                         : fmt::format("{} was given {}, which only {} has", name, option.name, option.strategy),
                     fmt::format("leave {} out, or choose the strategy {}", option.name, option.strategy));
  }
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const std::string& name, StrategyOptions options) {
  const auto& names = strategy_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    if (name != "multi-worker") require_one_worker(name, options);
    require_own_options(name, options);
  }
  options = internal::resolve_tuning(name, std::move(options));
  if (name == "one-device") {
    if (!options.device.empty()) options.devices.push_back(options.device);
    if (options.devices.size() > 1 || options.replicas > 1) {
      throw UsageError("LS-OPTION",
                       fmt::format("one-device was asked for {} and {}",
                                   internal::counted(static_cast<int64_t>(options.devices.size()), "device"),
                                   internal::counted(options.replicas, "replica")),
                       "name one device, or choose the strategy mirrored");
    }
    return std::make_unique<OneDeviceStrategy>(
        OneDeviceOptions{.device = options.devices.empty() ? "cpu" : options.devices.front(),
                         .seed = options.seed,
                         .threads_per_replica = options.threads_per_replica,
                         .verify_every = options.verify_every,
                         .denormals = options.denormals,
                         .factored_gradients = options.factored_gradients});
  }
  if (name == "mirrored") {
    return std::make_unique<MirroredStrategy>(MirroredOptions{.devices = std::move(options.devices),
                                                              .replicas = options.replicas,
                                                              .copies = options.copies,
                                                              .seed = options.seed,
                                                              .threads_per_replica = options.threads_per_replica,
                                                              .verify_every = options.verify_every,
                                                              .denormals = options.denormals,
                                                              .factored_gradients = options.factored_gradients});
  }
  if (name == "multi-worker") {
    return std::make_unique<MultiWorkerMirroredStrategy>(
        MultiWorkerMirroredOptions{.cluster = std::move(options.cluster),
                                   .devices = std::move(options.devices),
                                   .replicas = options.replicas,
                                   .copies = options.copies,
                                   .seed = options.seed,
                                   .threads_per_replica = options.threads_per_replica,
                                   .verify_every = options.verify_every,
                                   .denormals = options.denormals,
                                   .engine = std::move(options.engine),
                                   .timeouts = options.timeouts,
                                   .factored_gradients = options.factored_gradients,
                                   .update_form = options.update_form,
                                   .wire = options.wire,
                                   .slots = options.slots});
  }
  if (name == "central-storage") {
    if (options.copies == Copies::kPerReplica) {
      throw UsageError("LS-OPTION",
                       std::string("central-storage was asked for a copy of each variable for each replica"),
                       "leave .copies out, or choose the strategy mirrored");
    }
    return std::make_unique<CentralStorageStrategy>(
        CentralStorageOptions{.devices = std::move(options.devices),
                              .replicas = options.replicas,
                              .storage = std::move(options.storage),
                              .seed = options.seed,
                              .threads_per_replica = options.threads_per_replica,
                              .verify_every = options.verify_every,
                              .denormals = options.denormals,
                              .factored_gradients = options.factored_gradients});
  }
  throw UsageError("LS-OPTION", fmt::format("'{}' is not a strategy", name),
                   fmt::format("choose one of {}", fmt::join(strategy_names(), ", ")));
}

}  // namespace lockstep
