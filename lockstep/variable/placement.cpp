#include "lockstep/variable/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lockstep/core/counted.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep {

std::string Placement::slot_device(const NewVariable&, std::span<const std::string> devices) const {
  return devices.front();
}

OneCopyPlacement::OneCopyPlacement(std::string device) : device_(std::move(device)) {
  internal::require_host_memory(device_);
}

std::string OneCopyPlacement::describe() const { return "one copy for all replicas"; }

std::vector<VariableCopy> OneCopyPlacement::copies(const NewVariable&, const Lanes& lanes) const {
  VariableCopy copy{device_, std::vector<int64_t>(static_cast<std::size_t>(lanes.replicas))};
  std::iota(copy.replicas.begin(), copy.replicas.end(), int64_t{0});
  return {std::move(copy)};
}

std::string OwnCopyPlacement::describe() const { return "one copy for each replica"; }

std::vector<VariableCopy> OwnCopyPlacement::copies(const NewVariable&, const Lanes& lanes) const {
  std::vector<VariableCopy> copies;
  for (int64_t r = 0; r < lanes.replicas; ++r) copies.push_back({"cpu", {r}});
  return copies;
}

void internal::require_host_memory(const std::string& device) {
  if (parse_device(device).type == "cpu") return;
  throw UsageError(
      "LS-NOT-HOST",
      fmt::format("a variable was placed on device '{}', and this build keeps variables in the host's memory only",
                  device),
      "name \"cpu\", or one of the host's lanes");
}

std::vector<VariableCopy> internal::place(const Placement& placement, const NewVariable& variable, const Lanes& lanes) {
  std::vector<VariableCopy> copies = placement.copies(variable, lanes);
  std::vector<int> seen(static_cast<std::size_t>(lanes.replicas));
  bool valid = !copies.empty();
  for (const VariableCopy& copy : copies) {
    require_host_memory(copy.device);
    valid = valid && !copy.replicas.empty();
    for (const int64_t r : copy.replicas) {
      valid = valid && r >= 0 && r < lanes.replicas;
      if (valid) ++seen[static_cast<std::size_t>(r)];
    }
  }
  if (valid && std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; })) return copies;
  std::vector<std::string> found;
  for (const VariableCopy& copy : copies) {
    found.push_back(fmt::format("[{}] on {}", fmt::join(copy.replicas, ", "), copy.device));
  }
  throw UsageError("LS-PLACEMENT",
                   fmt::format("the placement \"{}\" gave variable '{}' the copies {} for {}", placement.describe(),
                               variable.name, found.empty() ? "none" : fmt::format("{}", fmt::join(found, ", ")),
                               counted(lanes.replicas, "replica")),
                   "let Placement::copies() list each replica in exactly one copy");
}

}  // namespace lockstep
