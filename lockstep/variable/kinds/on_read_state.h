// An on-read variable: each replica has a component of its own, and they become one value when it is read.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/variable/kinds/component_snapshot.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

/// A replica may write its component in any way, so a snapshot of each is taken as a run begins.
///
/// A variable that is *trained locally* has memory of the library's, because an optimizer writes there: a component
/// that was given other memory is then an error, and what is written in place is not.
class OnReadState final : public VariableState {
 public:
  OnReadState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts, VariableOptions options,
              const std::vector<at::Tensor>& components, const Origin& origin);

  /// A UsageError where it has no aggregation, or where components have become unlike each other; a DivergenceError
  /// where a buffer with Buffers::kEqual has different components.
  at::Tensor read() const override;
  void write(const at::Tensor& value) override;
  /// Sets local replica r's component. Where the value has another shape, or where other code replaced the memory of a
  /// variable that is trained locally, the component gets memory of the library's again.
  void write_component(int64_t r, const at::Tensor& value);

  /// Whether the run under way has changed local replica r's component.
  bool has_moved(int64_t r) const {
    const ComponentSnapshot& snapshot = snapshots_[static_cast<std::size_t>(r)];
    return snapshot.taken() && !snapshot.is_of(component(r));
  }
  /// What the run under way found there. Where it made the variable, or none is under way: what is there.
  at::Tensor before_run(int64_t r) const;
  /// Gives local replica r's component that value, and its memory, back.
  void restore_component(int64_t r);

  void begin_run(int64_t r) override { snapshots_[static_cast<std::size_t>(r)].take(component(r)); }
  void keep_step() override { stepped_ = true; }
  void end_run() noexcept override;
  /// Puts the components back as the run found them. Where an optimizer has completed a step on the variable in this
  /// run, nothing is put back, not even what was written after that step.
  void undo_run() noexcept override;

 private:
  [[noreturn]] void throw_not_as_left(int64_t r) override;
  void require_alike_components() const;
  void put_snapshots_back() noexcept;

  bool stepped_ = false;                      // an optimizer has completed a step on it in this run
  std::vector<ComponentSnapshot> snapshots_;  // each taken by its replica's thread
};

}  // namespace lockstep::internal::variable
