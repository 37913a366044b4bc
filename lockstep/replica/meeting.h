// A meeting point: what all replicas of a step do together, and how it is known that they mean the same thing.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::internal {

/// What one replica brings to a meeting point. It lives on the replica's stack while the replica waits there.
///
/// Replicas go on only when all have arrived with equal `what()` and `signature()`. Then the lowest replica's meeting
/// leads: `prepare` once on one thread, then for each phase `work` once for each lane, concurrently, and after it
/// `between` once on one thread. An exception from any of them reaches every replica, out of its call.
class Meeting {
 public:
  virtual ~Meeting() = default;

  /// The call the user made, a literal: "all_reduce", "optimizer.step".
  virtual const char* what() const = 0;
  /// Must be equal on all replicas: shapes, dtypes, operations, identities.
  virtual uint64_t signature() const { return 0; }
  /// `what()` with its arguments, for the message where signatures differ.
  virtual std::string describe() const { return what(); }

  /// `all[i]` is local replica i's meeting, all of this object's own type.
  virtual void prepare(std::span<Meeting* const> all) { (void)all; }
  virtual int num_phases() const { return 0; }
  virtual void work(int phase, int lane, int num_lanes) {
    (void)phase;
    (void)lane;
    (void)num_lanes;
  }
  virtual void between(int phase) { (void)phase; }
};

}  // namespace lockstep::internal
