#include "lockstep/core/device.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

DeviceName parse_device(const std::string& text) {
  const std::size_t colon = text.find(':');
  DeviceName name{text.substr(0, colon), -1};
  bool valid = name.type == "cpu" || name.type == "cuda";
  if (colon != std::string::npos) {
    const char* first = text.data() + colon + 1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, name.index);
    valid = valid && error == std::errc() && end == last && name.index >= 0 && *first != '-';
  }
  if (!valid) {
    throw UsageError(
        "LS-DEVICE",
        fmt::format("'{}' is not a device: devices are \"cpu:K\", lane K of the host, and \"cuda:K\", a GPU", text),
        "write \"cpu:0\", \"cpu:1\" and so on: this version computes on the CPU alone");
  }
  return name;
}

}  // namespace lockstep::internal::core
