// The second of the four decisions that make a strategy: where a variable lives. The others are replica/topology.h,
// reduce/reducer.h and variable/synchronization.h.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/replica/topology.h"

namespace lockstep {

/// What a placement may look at: an on-write variable, or a slot of one, that is about to be made.
struct NewVariable {
  std::string name;
  c10::IntArrayRef sizes;
  at::ScalarType dtype = at::kFloat;
  bool trainable = false;
  bool parameter = false;    // of a module
  int64_t index = 0;         // how many on-write variables the strategy made before it; of a slot 0
  std::string slot_of = "";  // of an optimizer's slot: the name of its variable
};

/// One memory of a variable.
struct VariableCopy {
  std::string device;             // whose memory it is: "cpu", or the name of a lane
  std::vector<int64_t> replicas;  // those of this process, counted from 0, whose component it is
};

/// Decides where on-write variables live; of an on-read one each replica has its own component.
class Placement {
 public:
  virtual ~Placement() = default;
  /// "one copy for all replicas": what describe() says after "variables: ".
  virtual std::string describe() const = 0;
  /// The copies of a variable: each replica of this process stands in exactly one of them. The library keeps them
  /// equal. A function of its arguments alone, so that all workers agree; what breaks these rules is a UsageError where
  /// the variable is made. Outside of steps, or all replicas at rest.
  virtual std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const = 0;
  /// Whose memory an optimizer's slot is in: it has one copy for all replicas. `devices` are those of the copies of the
  /// variable that it belongs to, which is slot.slot_of; the default is the first of them. A function of its arguments
  /// alone.
  virtual std::string slot_device(const NewVariable& slot, std::span<const std::string> devices) const;
};

/// One copy for all replicas of a memory.
class OneCopyPlacement final : public Placement {
 public:
  /// `device` is whose memory it is: a UsageError where it is not the host's.
  explicit OneCopyPlacement(std::string device = "cpu");
  std::string describe() const override;
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override;

 private:
  std::string device_;
};

/// One copy for each replica.
class OwnCopyPlacement final : public Placement {
 public:
  std::string describe() const override;
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override;
};

namespace internal {
/// Throws the UsageError of a device whose memory this build cannot keep variables in.
void require_host_memory(const std::string& device);
/// What `placement` decides, checked.
std::vector<VariableCopy> place(const Placement& placement, const NewVariable& variable, const Lanes& lanes);
}  // namespace internal

}  // namespace lockstep
