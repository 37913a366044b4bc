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
  int64_t index = 0;         // how many on-write and locally trained variables were made before it; of a slot 0
  std::string slot_of = "";  // of an optimizer's slot: the name of its variable
};

/// One memory of a variable.
struct VariableCopy {
  std::string device;             // that it lies on: "cpu", or the name of a lane
  std::vector<int64_t> replicas;  // those of this process, counted from 0, whose component lies in it
};

/// Decides where on-write variables live. It is not asked for an on-read variable: there each replica has its own
/// component.
class Placement {
 public:
  virtual ~Placement() = default;
  /// "one copy for all replicas": what describe() says after "variables: ".
  virtual std::string describe() const = 0;
  /// The copies of a variable: each replica of this process is in exactly one of them. The library keeps them equal.
  /// The result depends on the arguments alone, so that all workers agree. A result that breaks these rules is a
  /// UsageError where the variable is made. Called outside of steps, or while all replicas are at rest.
  virtual std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const = 0;
  /// The device in whose memory an optimizer's slot lies. A slot has one copy for all replicas. `devices` are those of
  /// the copies of the slot's variable, slot.slot_of; the default is the first of them. The result depends on the
  /// arguments alone.
  virtual std::string slot_device(const NewVariable& slot, std::span<const std::string> devices) const;
};

/// One copy for all replicas of this process.
class OneCopyPlacement final : public Placement {
 public:
  /// The copy lies in the memory of `device`; a UsageError where that is not the host's memory.
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

namespace internal::inline variable {
/// Throws a UsageError where this build cannot keep variables in the memory of `device`.
void require_host_memory(const std::string& device);
/// The copies that `placement` decides on. Throws a UsageError where they break its rules.
std::vector<VariableCopy> place(const Placement& placement, const NewVariable& variable, const Lanes& lanes);
}  // namespace internal::variable

}  // namespace lockstep
