// The workers of a host share the update of one copy, in memory that all of them map.
#pragma once

#include <memory>
#include <string>

#include "lockstep/optim/forms/form.h"
#include "lockstep/optim/forms/host_update.h"

namespace lockstep::internal::inline optim {

/// On one host. Leaves: partial sums, or factors, lie in the host's memory. Blocks: a share for each lane of all
/// workers. New values go into the other half of each value's memory, and are valid when all have voted and moved.
class OneHostForm : public Form {
 public:
  OneHostForm(UpdateWork& work, std::unique_ptr<HostUpdate> host);

  const StageTables& stages() const override;
  int64_t num_leaves() const override { return work_.group->num_replicas(); }
  void begin_step(const StepOptions& options) override;
  void share_norm() override;
  bool moves_values() const override { return true; }
  std::string text() const override { return "each worker updates a part of one copy, in memory that all workers map"; }
  FormOfVariable of_variable(std::size_t) const override { return {"host memory", 0}; }

  // Stages.
  void pack(int lane, int num_lanes) { host_->gradients().pack(work_.gradients, lane, num_lanes); }
  void meet_with_sums();
  void vote() { host_->vote(work_.parts.front().update); }
  void move(int lane, int num_lanes) { host_->move(work_.parts.front().update, lane, num_lanes); }

 protected:
  void agree_on_counts();

  const std::unique_ptr<HostUpdate> host_;
};

/// On several hosts, each with a copy: the leaves are sums over all hosts, or factors, which travel between them.
class SeveralHostsForm final : public OneHostForm {
 public:
  using OneHostForm::OneHostForm;

  const StageTables& stages() const override;
  bool exchanges() const override { return true; }
  int64_t num_computations() const override { return host_->hosts().count(); }
  int64_t computation_of(int64_t worker) const override { return host_->hosts().host_of(worker); }
  std::string text() const override;
  FormOfVariable of_variable(std::size_t i) const override;

  // Stages.
  void send_factors();
  void combine(int lane, int num_lanes) { sums().combine(lane, num_lanes); }
  void send_partial_sums() { sums().send_partial_sums(); }
  void add(int lane, int num_lanes) { sums().add(lane, num_lanes); }
  void send_sums();

 private:
  SumsBetweenHosts& sums() { return *host_->gradients().sums_between_hosts(); }
};

}  // namespace lockstep::internal::optim
