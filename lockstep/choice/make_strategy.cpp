#include "lockstep/choice/make_strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/resolve_tuning.h"

namespace lockstep {

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names{"one-device", "mirrored", "multi-worker", "central-storage",
                                              "parameter-server"};
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
  constexpr const char* kServers = "parameter-server";
  struct Option {
    const char* name;
    bool is_given;
    const char* strategy;         // which has it
    const char* other = nullptr;  // which has it too
  };
  const StrategyOptions defaults;
  const Tuning& tuning = options.tuning;
  const std::array<Option, 20> all{{
      {".partitioner", static_cast<bool>(options.partitioner), kServers},
      {".placement", options.placement != defaults.placement, kServers},
      {".staleness", options.staleness != defaults.staleness, kServers},
      {".record", options.record != defaults.record, kServers},
      {".workers", options.workers != defaults.workers, kServers},
      {".servers", options.servers != defaults.servers, kServers},
      {".queue", options.queue != defaults.queue, kServers},
      {".attempts", options.attempts != defaults.attempts, kServers},
      {".timeouts.step", options.timeouts.step != defaults.timeouts.step, kServers},
      {".storage", options.storage != defaults.storage, "central-storage"},
      {".engine", options.engine != defaults.engine, "multi-worker", kServers},
      {".timeouts", options.timeouts != defaults.timeouts, "multi-worker", kServers},
      {".update_form", options.update_form != defaults.update_form, "multi-worker"},
      {".wire", options.wire != defaults.wire, "multi-worker", kServers},
      {".slots", options.slots != defaults.slots, "multi-worker"},
      {".device", options.device != defaults.device, "one-device", kServers},
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

/// A ParameterServerStrategy has few of the options that replicas have.
void require_options_of_servers(const StrategyOptions& options) {
  const StrategyOptions defaults;
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  const auto require = [&](bool is_default, const char* option) {
    if (!is_default)
      refuse(fmt::format("parameter-server was given {}, which it does not have", option), "leave it out");
  };
  require(options.devices.empty(), ".devices");
  require(options.verify_every == defaults.verify_every, ".verify_every");
  require(options.denormals == defaults.denormals, ".denormals");
  require(options.factored_gradients == defaults.factored_gradients, ".factored_gradients");
  require(!options.tuning.verify_every || *options.tuning.verify_every == defaults.verify_every,
          ".tuning.verify_every");
  require(!options.tuning.factored_gradients || *options.tuning.factored_gradients == defaults.factored_gradients,
          ".tuning.factored_gradients");
  if (options.replicas > 0 && options.workers && *options.workers != options.replicas) {
    refuse(fmt::format("parameter-server was given .replicas = {} and .workers = {}, and each worker is a replica",
                       options.replicas, *options.workers),
           "give one of them");
  }
}

std::unique_ptr<Strategy> make_with_servers(StrategyOptions options) {
  require_options_of_servers(options);
  const ParameterServerOptions defaults;
  return std::make_unique<ParameterServerStrategy>(ParameterServerOptions{
      .cluster = std::move(options.cluster),
      .partitioner = std::move(options.partitioner),
      .placement = options.placement,
      .staleness = options.staleness,
      .record = std::move(options.record),
      .workers = options.workers.value_or(options.replicas > 0 ? options.replicas : defaults.workers),
      .servers = options.servers.value_or(defaults.servers),
      .seed = options.seed,
      .threads_per_replica = options.threads_per_replica,
      .engine = std::move(options.engine),
      .timeouts = options.timeouts,
      .queue = options.queue,
      .attempts = options.attempts,
      .wire = options.wire,
      .device = std::move(options.device)});
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const std::string& name, StrategyOptions options) {
  const auto& names = strategy_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    if (name != "multi-worker" && name != "parameter-server") require_one_worker(name, options);
    require_own_options(name, options);
  }
  if (name == "parameter-server") return make_with_servers(std::move(options));
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
