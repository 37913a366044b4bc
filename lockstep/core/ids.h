// The numbers that name the parts of a run. A replica is one copy of the step function; a worker is one process.
#pragma once

#include <cstdint>

namespace lockstep {

/// A replica of the whole run, 0 to num_replicas() - 1 over all workers. It converts from and to its number, and prints
/// as it.
class ReplicaId {
 public:
  constexpr ReplicaId() = default;
  constexpr ReplicaId(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr operator int64_t() const { return value_; }  // NOLINT(google-explicit-constructor)
  constexpr int64_t value() const { return value_; }

 private:
  int64_t value_ = 0;
};

}  // namespace lockstep
