#include "lockstep/variable/kinds/on_read_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/module/module_buffers.h"

namespace lockstep::internal::inline variable {

OnReadState::OnReadState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts,
                         VariableOptions options, const std::vector<at::Tensor>& components, const Origin& origin)
    : VariableState(std::move(group), std::move(counts), std::move(options), components,
                    origin.local ? VariableMemory(components, /*has_checksums=*/false) : VariableMemory(),
                    origin.local ? Watch::kMemory : Watch::kNothing, origin),
      snapshots_(components.size()) {}

at::Tensor OnReadState::read() const {
  const at::NoGradGuard no_grad;
  if (options().aggregation == VariableAggregation::kNone) {
    throw UsageError(
        "LS-NO-AGGREGATION",
        fmt::format("variable '{}' is on-read and has no aggregation, so there is no single value to read", name()),
        "read components(), or create it with kSum, kMean or kOnlyFirstReplica");
  }
  if (buffers() == Buffers::kEqual) {
    const OnReadState* const self = this;
    require_equal_on_replicas(*group(), {&self, 1});
  }
  const at::Tensor first = plain(component(0));
  if (options().aggregation == VariableAggregation::kOnlyFirstReplica) return group()->of_replica(0, first).clone();
  // Workers go on to exchange values, so none may refuse its components alone.
  agree_on_call(group()->rounds(), {.call = "a read", .name = name(), .step = group()->step()},
                [&](Proposal& proposal) {
                  require_alike_components();
                  proposal.signature = with_dtype_and_shape(Digest(), first).value();
                  proposal.detail = fmt::format("a read of '{}', {}", name(), shape_text(first));
                });
  std::vector<at::Tensor> values;
  for (const Component& one : components_) values.push_back(plain(one.tensor));
  const bool sum = options().aggregation == VariableAggregation::kSum;
  return reading_of(group()->reducer(), sum ? Reduction::kSum : Reduction::kMean, group()->of_all_replicas(values));
}

void OnReadState::require_alike_components() const {
  const at::Tensor& first = component(0);
  for (int64_t r = 1; r < num_components(); ++r) {
    const at::Tensor& other = component(r);
    if (other.sizes() == first.sizes() && other.scalar_type() == first.scalar_type()) continue;
    const auto text = [](const at::Tensor& one) {
      return fmt::format("{} [{}]", c10::toString(one.scalar_type()), fmt::join(one.sizes(), ", "));
    };
    throw UsageError("LS-NOT-ALIKE",
                     fmt::format("variable '{}' has become {} on replica {} and {} on replica {}", name(), text(first),
                                 group()->first_replica().value(), text(other), group()->first_replica() + r),
                     "let all replicas change its shape and dtype in the same way, or read components()");
  }
}

void OnReadState::write(const at::Tensor& value) {
  const at::Tensor source = WrittenMemory(*this).copied_if_inside(value);
  for (int64_t r = 0; r < num_components(); ++r) write_component(r, source);
}

void OnReadState::write_component(int64_t r, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  at::Tensor& target = component_at(r).tensor;
  if (is_trained_locally()) {
    put_back(r);
  } else if (target.sizes() != value.sizes() || elements_overlap(target)) {
    // It grew in training, or elements of it share memory, so that not every value fits there.
    target.set_data(value.to(target.options(), /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous));
    return;
  }
  // The value may be another view of the component, such as its transpose.
  target.copy_(address_range_of(target).overlaps(address_range_of(value)) ? value.clone() : value);
  component_at(r).expect();
  if (is_trained_locally()) forget_autocast_weights();
}

at::Tensor OnReadState::before_run(int64_t r) const {
  const ComponentSnapshot& snapshot = snapshots_[static_cast<std::size_t>(r)];
  return snapshot.taken() ? plain(snapshot.values()) : plain(component(r));
}

void OnReadState::restore_component(int64_t r) {
  const ComponentSnapshot& snapshot = snapshots_[static_cast<std::size_t>(r)];
  if (snapshot.taken()) snapshot.put_back(component_at(r).tensor);
}

void OnReadState::end_run() noexcept {
  stepped_ = false;
  for (ComponentSnapshot& snapshot : snapshots_) snapshot.expire();
}

void OnReadState::undo_run() noexcept {
  if (!stepped_) put_snapshots_back();
  end_run();
}

void OnReadState::put_snapshots_back() noexcept {
  try {
    try {
      for (int64_t r = 0; r < num_components(); ++r) {
        const ComponentSnapshot& snapshot = snapshots_[static_cast<std::size_t>(r)];
        // Without a snapshot the variable was made while the run was under way, or the run ended before it began.
        if (snapshot.taken()) snapshot.put_back(component_at(r).tensor);
      }
    } catch (const std::exception& error) {
      log(LogLevel::kError,
          fmt::format("variable '{}': it could not be rolled back after a failed run: {}", name(), error.what()));
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory to log it either
  }
}

void OnReadState::throw_not_as_left(int64_t r) {
  throw DivergenceError(
      "LS-FOREIGN-WRITE",
      fmt::format("variable '{}', which each replica trains locally: on replica {} it was given other memory "
                  "(set_data, .to() or an assignment to .data())",
                  name(), group()->first_replica() + r),
      "write it in place, without gradient, or by Variable::assign; assign or load it now to go on");
}

}  // namespace lockstep::internal::variable
