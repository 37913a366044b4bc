// The second of the three decisions that make a strategy: where a variable lives. The others are replica/topology.h and
// reduce/reducer.h.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/replica/topology.h"

namespace lockstep {

/// What a placement may look at: an on-write variable that is about to be made.
struct NewVariable {
  std::string name;
  c10::IntArrayRef sizes;
  at::ScalarType dtype = at::kFloat;
  bool trainable = false;
  bool parameter = false;  // of a module
  int64_t index = 0;       // how many on-write variables the strategy made before it
};

/// One memory of a variable.
struct VariableCopy {
  std::string device;             // whose memory it is: "cpu", or the name of a lane
  std::vector<int64_t> replicas;  // those of this process, counted from 0, whose component it is
};

/// Decides where on-write variables live; of an on-read one each replica has its own component. An optimizer's slot has
/// one copy, beside the first of its variable.
class Placement {
 public:
  virtual ~Placement() = default;
  /// "one copy for all replicas": what describe() says after "variables: ".
  virtual std::string describe() const = 0;
  /// The copies of a variable: each replica of this process stands in exactly one of them. The library keeps them
  /// equal. A function of its arguments alone, so that all workers agree; what breaks these rules is a UsageError where
  /// the variable is made. Outside of steps, or all replicas at rest.
  virtual std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const = 0;
  /// Whether a trainable parameter of a module is *trained apart*: then copies() is not asked. It is an on-read
  /// variable with kMean; each replica has its own component, which an optimizer updates by that replica's gradient
  /// alone, times the number of replicas; and Reducer::averages_after() says when the components become their mean. A
  /// function of its argument alone.
  virtual bool trains_apart(const NewVariable& variable) const;
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
