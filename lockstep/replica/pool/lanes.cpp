#include "lockstep/replica/pool/lanes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline replica {

namespace {

void check_devices(const std::vector<std::string>& devices) {
  std::set<std::string> seen;
  for (const auto& text : devices) {
    const DeviceName name = parse_device(text);
    if (name.type != "cpu") {
      throw UsageError(
          "LS-DEVICE",
          fmt::format("device '{}' was asked for, and this version of Lockstep computes on the CPU only: it "
                      "has no library for GPUs that a program could be linked with",
                      text),
          "write \"cpu:0\", \"cpu:1\" and so on for lanes of the host, or leave .devices out");
    }
    if (!seen.insert(fmt::format("{}:{}", name.type, std::max<int64_t>(name.index, 0))).second) {
      throw UsageError("LS-LANES", fmt::format("device '{}' stands twice in .devices", text),
                       "name each lane once; for more replicas on it raise .replicas");
    }
  }
}

void check_cores(const Lanes& lanes, const Host& host) {
  if (lanes.cores.empty()) return;
  const auto usable = [&](const std::vector<int>& set) {
    return !set.empty() && std::all_of(set.begin(), set.end(), [&](int core) {
      return std::find(host.cores.begin(), host.cores.end(), core) != host.cores.end();
    });
  };
  if (lanes.cores.size() == lanes.devices.size() && std::all_of(lanes.cores.begin(), lanes.cores.end(), usable)) return;
  throw UsageError("LS-LANES",
                   fmt::format("a topology gave the cores {} to the lanes [{}], and this process may use {}",
                               lanes.cores, fmt::join(lanes.devices, ", "), host.cores),
                   "give every lane cores of this process, or give no lane any cores");
}

}  // namespace

LanePlan plan_lanes(const Topology& topology, Host host, const ComputeSettings& compute) {
  if (compute.threads < 1) {
    throw UsageError("LS-OPTION", fmt::format(".threads_per_replica is {}", compute.threads),
                     "give each replica at least one thread");
  }
  host.threads_per_replica = compute.threads;
  Lanes lanes = topology.lanes(host);
  if (lanes.devices.empty())
    throw UsageError("LS-LANES", "a topology gave no lanes", "give at least one, such as \"cpu:0\"");
  check_devices(lanes.devices);
  const auto count = static_cast<int64_t>(lanes.devices.size());
  if (lanes.replicas < count) {
    throw UsageError(
        "LS-LANES",
        fmt::format("{} replica{} asked for on the {} [{}]", lanes.replicas, lanes.replicas == 1 ? " was" : "s were",
                    counted(count, "lane"), fmt::join(lanes.devices, ", ")),
        fmt::format("ask for .replicas of at least {}, or name fewer .devices", count));
  }
  check_cores(lanes, host);
  LanePlan plan;
  plan.names = std::move(lanes.devices);
  plan.num_replicas = lanes.replicas;
  plan.compute = compute;
  plan.cores = std::move(lanes.cores);
  plan.available_cores = host.available_cores();
  plan.process_cores = std::move(host.cores);
  plan.replicas_from_machine = lanes.replicas_from_machine;
  return plan;
}

}  // namespace lockstep::internal::replica
