// Names of execution devices: "cpu:0" is a lane of the host, "cuda:1" a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal {

struct DeviceName {
  std::string type;    // "cpu", "cuda"
  int64_t index = -1;  // -1 where the name has none: "cpu"
};

/// Splits a device name; a UsageError that quotes it where it is none.
DeviceName parse_device(const std::string& text);

}  // namespace lockstep::internal
