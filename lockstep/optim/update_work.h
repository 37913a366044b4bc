// What one optimizer's update works on, whatever its form: variables, gradients, and the parts that compute new values.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/exchange/row_exchange.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/row_update.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

/// Variables that all replicas share have one part. Variables that are trained locally have one for each replica, on
/// that replica's lane.
struct UpdatePart {
  FusedUpdate update;
  double factor = 1;   // of the gradient: the number of replicas where trained locally, as each loss has its share
  Clip clip = {};      // of the step under way; `factor` is part of it
  StepInfo info = {};  // written in the meeting, read by the replicas after it
  RowUpdate rows = {};
  double global_norm() const { return std::sqrt(update.sum_of_squares() + rows.sum_of_squares()); }
};

/// It stays where it was made, as long as the optimizer. All replicas are at rest when any of it changes, unless it is
/// said otherwise.
struct UpdateWork {
  /// `sparse` says of a variable what its rule, with its present settings, does with sparse gradients.
  UpdateWork(std::shared_ptr<ReplicaGroup> its_group, std::string its_name, std::vector<UpdateTarget> its_targets,
             std::function<SparseSupport(std::size_t)> sparse)
      : group(std::move(its_group)),
        name(std::move(its_name)),
        targets(std::move(its_targets)),
        variables(variables_of(targets)),
        local(variables.front()->is_trained_locally()),
        gradients(variables, group->num_local_replicas(), std::move(sparse)) {
    if (!local && group->num_workers() > 1) row_exchange.emplace(variables, *group);
  }
  UpdateWork(const UpdateWork&) = delete;
  UpdateWork& operator=(const UpdateWork&) = delete;

  const std::shared_ptr<ReplicaGroup> group;
  const std::string name;                                       // the optimizer's
  const std::vector<UpdateTarget> targets;                      // of all groups, in order
  const std::vector<std::shared_ptr<VariableState>> variables;  // theirs
  const bool local;                                             // each replica trains its own components
  GradientTable gradients;
  std::optional<RowExchange> row_exchange;  // with several workers, but where variables are trained locally
  std::deque<UpdatePart> parts;             // made by the form
  /// Says in a proposal how often the variables of the step have been updated, which must be equal on all workers.
  std::function<void(Proposal&)> tell_counts;

  /// What all workers have told of the step's gradients that are not kept as rows. The reference holds until the
  /// step ends.
  const std::vector<GradientsOnWorkers>& told_of_dense() {
    if (!gradients.has_rows()) return gradients.told().gradients;
    without_rows_ = gradients.told().gradients;
    for (GradientsOnWorkers& one : without_rows_) {
      if (one.in_rows) one = {};
    }
    return without_rows_;
  }

  // Of the step under way.
  bool measures = false;    // the norm is known before anything is updated
  bool is_skipped = false;  // a gradient was not finite, and the update is left out

  /// Whether the step updates variable i.
  bool updates(std::size_t i) const {
    const UpdatePart& part = parts.front();
    return part.update.present(i) || (!part.rows.is_empty() && part.rows.has(i));
  }
  /// Calls fn(part, its lane) for the parts that a lane has work for.
  template <class Fn>
  void for_each_part(int lane, const Fn& fn) {
    if (!local) return fn(parts.front(), lane);
    const LanePlan& plan = group->plan();
    for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k)
      fn(parts[static_cast<std::size_t>(plan.first_replica_of(lane) + k)], 0);
  }

 private:
  std::vector<GradientsOnWorkers> without_rows_;
};

}  // namespace lockstep::internal::optim
