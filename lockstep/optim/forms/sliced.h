// Workers divide the update: each updates its slices of all variables, and has the slots of these alone.
#pragma once

#include <string>
#include <vector>

#include "lockstep/optim/forms/form.h"
#include "lockstep/optim/forms/sliced_update.h"

namespace lockstep::internal::inline optim {

/// Leaves: every worker gets the partial sums of its slices, or factors. Blocks: those of its slices. New weights are
/// computed aside and sent to all; when all have voted, each writes all of them, and the slots of its slices.
class SlicedForm final : public Form {
 public:
  SlicedForm(UpdateWork& work, const std::vector<std::vector<double>>& initial, const AskedForm& asked);

  const StageTables& stages() const override;
  int64_t num_leaves() const override { return work_.group->num_replicas(); }
  std::string report() const override { return sliced_.report(); }
  void begin_step(const StepOptions& options) override;
  void share_norm() override { sliced_.share_squares(update_of_slices()); }
  bool exchanges() const override { return true; }
  bool sum_is_finite(std::size_t i) const override { return sliced_.own_sum_is_finite(work_.gradients, i); }
  SlicedSlots* sliced_slots() override { return &sliced_.slots(); }
  std::string text() const override {
    return "each worker updates a part of all blocks, and has the slots of this part alone";
  }
  FormOfVariable of_variable(std::size_t i) const override;

  // Stages.
  void pack(int lane, int num_lanes) { sliced_.pack(work_.gradients, lane, num_lanes); }
  void send() { sliced_.send(work_.gradients); }
  void prepare(int lane, int num_lanes);
  void vote();
  void update_and_commit(int lane, int num_lanes);

 private:
  FusedUpdate& update_of_slices() { return work_.parts.front().update; }

  const AskedForm asked_;
  SlicedUpdate sliced_;
};

}  // namespace lockstep::internal::optim
