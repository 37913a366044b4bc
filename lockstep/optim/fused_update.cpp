#include "lockstep/optim/fused_update.h"

#include <utility>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes)
    : FusedUpdate(std::move(targets), replicas, {0, lanes, lanes}, {}) {
  begin_step();
}

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, LaneRange lanes,
                         std::span<double> squares)
    : update_(std::move(targets), replicas, lanes, squares), kernels_(host_update_kernels(update_)), rules_(update_) {}

void FusedUpdate::expect_factors(std::size_t i) {
  const at::Tensor& like = targets()[i].variable->like();
  kernels_->expect_factors(update_, i, like.size(0), like.size(1));
}

void FusedUpdate::call_rules(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured,
                             bool digests) {
  rules_.call(update_, *kernels_, {gradients, clip, is_measured}, lane, digests);
}

uint64_t FusedUpdate::digest_of_rules() const {
  uint64_t sum = 0;
  for (std::size_t i = 0; i < targets().size(); ++i) sum += digest_of_rule(i);
  return sum;
}

void FusedUpdate::update(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured) {
  update_.foreign_writes(lane).clear();
  kernels_->update(update_, {gradients, clip, is_measured}, lane);
  rules_.store(update_, *kernels_, lane, nullptr);
}

void FusedUpdate::prepare(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured,
                          PlaceOfBlock place) {
  update_.foreign_writes(lane).clear();
  kernels_->prepare(update_, {gradients, clip, is_measured}, lane, place);
  rules_.store(update_, *kernels_, lane, &place);
}

}  // namespace lockstep::internal::optim
