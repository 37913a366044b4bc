// Makes a strategy by its name, for programs that choose at run time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/kinds/central_storage.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "lockstep/strategy/kinds/multi_worker_mirrored.h"
#include "lockstep/strategy/kinds/one_device.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tuning.h"

namespace lockstep {

/// The options of all strategies together. Each strategy takes those that it has; the others must keep their defaults.
struct StrategyOptions {
  std::vector<std::string> devices = {};  // one-device takes at most one
  int64_t replicas = 0;
  Copies copies = Copies::kPerMemory;
  uint64_t seed = 0;
  int threads_per_replica = 1;
  int64_t verify_every = 100;
  Denormals denormals = Denormals::kFlush;
  std::string storage = "cpu";  // of central-storage
  FactoredGradients factored_gradients = FactoredGradients::kAuto;
  std::optional<ClusterSpec> cluster = std::nullopt;  // this and the next two are of multi-worker and parameter-server
  std::string engine = "auto";
  WorkerTimeouts timeouts = {};
  UpdateForm update_form = UpdateForm::kAuto;  // this and .slots are of multi-worker
  WireFormat wire = WireFormat::kExact;        // of multi-worker and parameter-server
  Slots slots = Slots::kWhole;
  std::string device = {};  // of one-device, in place of .devices, and of parameter-server
  Tuning tuning = {};       // the options that decide no bits, in one place
  // These are of parameter-server, which takes .replicas as the number of its workers too.
  Partitioner partitioner = {};
  ServerPlacement placement = ServerPlacement::kInTurn;
  std::optional<int64_t> staleness = std::nullopt;
  std::string record = {};
  std::optional<int64_t> workers = std::nullopt;
  std::optional<int64_t> servers = std::nullopt;
  StepQueue queue = {};
  int64_t attempts = 3;
};

/// "one-device", "mirrored", "multi-worker", "central-storage" or "parameter-server". A UsageError for another name,
/// and for an option that is not its default and that the strategy does not have or cannot honour. Of parameter-server
/// it gives a ParameterServerStrategy, whose steps are scheduled; a Trainer does that by itself.
std::unique_ptr<Strategy> make_strategy(const std::string& name, StrategyOptions options = {});

/// The names that make_strategy knows.
const std::vector<std::string>& strategy_names();

}  // namespace lockstep
