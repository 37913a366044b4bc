// A port for a test that must know one before anybody listens there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "lockstep/comm/join/reserved_port.h"

namespace lockstep::testing {

/// A TCP port of the loopback interface at which nobody listens now. This process keeps its last 16 ports reserved, so
/// that the system gives them to nobody who asks for any port, such as the workers that are not the chief. Any thread
/// may call.
inline uint16_t free_port() {
  static std::mutex mutex;
  static std::array<std::optional<internal::ReservedPort>, 16> kept;  // guarded by mutex
  static std::size_t count = 0;                                       // guarded by mutex
  const std::lock_guard<std::mutex> lock(mutex);
  return kept[count++ % kept.size()].emplace().number();
}

}  // namespace lockstep::testing
