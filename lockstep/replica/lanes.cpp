#include "lockstep/replica/lanes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

void check_devices(const std::vector<std::string>& devices) {
  std::set<std::string> seen;
  for (const auto& text : devices) {
    const DeviceName name = parse_device(text);
    if (name.type != "cpu") {
      throw UsageError(
          fmt::format("device '{}' was asked for, and this build runs replicas on the host's lanes only", text),
          "use \"cpu:0\", \"cpu:1\" and so on");
    }
    if (!seen.insert(fmt::format("{}:{}", name.type, std::max<int64_t>(name.index, 0))).second) {
      throw UsageError(fmt::format("device '{}' stands twice in .devices", text),
                       "name each lane once; for more replicas on it raise .replicas");
    }
  }
}

int64_t largest_divisor_up_to(int64_t number, int64_t limit) {
  int64_t divisor = std::min(number, limit);
  while (number % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

LanePlan plan_lanes(const LaneRequest& request, const std::vector<int>& cores, int64_t local_worker) {
  if (request.replicas < 0) {
    throw UsageError(fmt::format(".replicas is {}", request.replicas), "ask for at least one replica, or leave it out");
  }
  if (request.compute.threads < 1) {
    throw UsageError(fmt::format(".threads_per_replica is {}", request.compute.threads),
                     "give each replica at least one thread");
  }
  check_devices(request.devices);

  LanePlan plan;
  plan.compute = request.compute;
  plan.available_cores = static_cast<int64_t>(cores.size());
  plan.names = request.devices;
  if (plan.names.empty()) {
    const int64_t lanes =
        request.replicas == 0 ? plan.available_cores : largest_divisor_up_to(request.replicas, plan.available_cores);
    for (int64_t lane = 0; lane < lanes; ++lane) plan.names.push_back(fmt::format("cpu:{}", lane));
    plan.replicas_from_machine = request.replicas == 0;
  }
  plan.num_replicas = request.replicas == 0 ? plan.num_lanes() : request.replicas;
  if (plan.num_replicas % plan.num_lanes() != 0) {
    throw UsageError(fmt::format("{} replicas cannot be dealt evenly to the {} lanes [{}]", plan.num_replicas,
                                 plan.num_lanes(), fmt::join(plan.names, ", ")),
                     fmt::format("make .replicas a multiple of {}, or change .devices", plan.num_lanes()));
  }
  const int64_t needed = static_cast<int64_t>(plan.num_lanes()) * plan.compute.threads;
  if (needed <= plan.available_cores) {
    std::size_t next = static_cast<std::size_t>(local_worker * needed);
    for (int lane = 0; lane < plan.num_lanes(); ++lane) {
      std::vector<int>& set = plan.cores.emplace_back();
      for (int thread = 0; thread < plan.compute.threads; ++thread) set.push_back(cores[next++ % cores.size()]);
    }
  }
  return plan;
}

std::vector<int> cores_of_this_process() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cores;
  // The main thread's mask is the process's: a caller may itself be pinned.
  if (sched_getaffinity(getpid(), sizeof mask, &mask) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

}  // namespace lockstep::internal
