// Every worker updates all: gradients travel, as sums or as factors.
#pragma once

#include <string>

#include "lockstep/exchange/gradient_exchange.h"
#include "lockstep/optim/forms/form.h"

namespace lockstep::internal::inline optim {

/// Leaves: gradient_exchange.h brings the other workers' part of each sum here. Blocks: all. New values are written
/// over the old ones, once every worker has all sums.
class EveryWorkerForm final : public Form {
 public:
  EveryWorkerForm(UpdateWork& work, const AskedForm& asked, std::string why_not_shared);

  const StageTables& stages() const override;
  int64_t num_leaves() const override { return work_.group->num_replicas(); }
  std::string report() const override { return exchange_.report(); }
  void begin_step(const StepOptions& options) override;
  void forget_run() noexcept override { exchange_.forget_gradients(); }
  bool exchanges() const override { return true; }
  int64_t num_computations() const override { return work_.group->num_workers(); }
  int64_t computation_of(int64_t worker) const override { return worker; }
  std::string text() const override;
  FormOfVariable of_variable(std::size_t i) const override;

  // Stages.
  void compare(int lane, int) { exchange_.compare(work_.gradients, lane); }
  void pack(int lane, int num_lanes) { exchange_.pack(work_.gradients, lane, num_lanes); }
  void send() { exchange_.send(work_.gradients); }
  void add(int lane, int num_lanes) { exchange_.add(lane, num_lanes); }
  void send_sums();
  void unpack(int lane, int num_lanes) { exchange_.unpack(lane, num_lanes); }
  /// What does not travel: half precision.
  void reduce_others();

 private:
  const std::string why_not_shared_;
  const bool rounds_;  // sums travel in another format
  GradientExchange exchange_;
};

}  // namespace lockstep::internal::optim
