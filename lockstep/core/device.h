// Names of execution devices: "cpu:0" is a lane of the host, "cuda:1" a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal::inline core {

struct DeviceName {
  std::string type;    // "cpu", "cuda"
  int64_t index = -1;  // -1 where the name has none: "cpu"
};

/// Splits a device name. Throws a UsageError that quotes `text` where it is not one.
DeviceName parse_device(const std::string& text);

}  // namespace lockstep::internal::core
