#include "lockstep/replica/replica_context.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/loss_weight.h"
#include "lockstep/replica/padding_check.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep {

Count::Count(const at::Tensor& value) {
  if (!value.defined() || value.numel() != 1) {
    throw UsageError("LS-COUNT",
                     fmt::format("a count was given as a tensor of {} elements", value.defined() ? value.numel() : 0),
                     "give a number, or a tensor of one element");
  }
  value_ = value.item<double>();
}

void ReplicaContext::check_is_current(const char* call) const {
  const ReplicaContext* here = internal::current_context();
  if (here == this) return;
  if (here) {
    throw UsageError("LS-OUTSIDE-STEP",
                     fmt::format("{} was called on replica {}'s context inside the step of replica {}", call,
                                 group_.first_replica() + local_index_, here->replica_id().value()),
                     "use the context that this replica's step function was given");
  }
  throw UsageError(
      "LS-OUTSIDE-STEP",
      fmt::format("{} was called on a replica context outside of its step: after run() returned, on another "
                  "thread, or in a merge function",
                  call),
      "use a context only inside the step function that it was passed to, on the thread that runs it");
}

const ReplicaContext::Share& ReplicaContext::the_batch(const char* call) const {
  check_is_current(call);
  if (share_.batches == 1 && share_.part <= share_.whole) return share_;
  if (share_.batches == 1) {
    throw UsageError("LS-BATCH",
                     fmt::format("{} needs Batch::global_size, which is {} where this replica's part has {}", call,
                                 share_.whole, internal::counted(share_.part, "sample")),
                     "set .global_size of each part to the samples of all parts together; strategy.split() does it");
  }
  throw UsageError("LS-BATCH",
                   fmt::format("{} was called in {} that was given {} Batch arguments", call,
                               group_.evaluating() ? "an evaluation" : "a run", share_.batches),
                   "pass exactly one Batch, or give the counts: scale_loss(mean_loss, part, whole)");
}

ReplicaId ReplicaContext::replica_id() const {
  check_is_current("replica_id()");
  return group_.first_replica() + local_index_;
}

int64_t ReplicaContext::num_replicas() const {
  check_is_current("num_replicas()");
  return group_.num_replicas();
}

c10::Device ReplicaContext::device() const {
  check_is_current("device()");
  return c10::Device(c10::kCPU);
}

int64_t ReplicaContext::step() const {
  check_is_current("step()");
  return group_.step();
}

at::Tensor ReplicaContext::scale_loss(const at::Tensor& mean_loss) const {
  const Share& share = the_batch("scale_loss(mean_loss)");
  return scale_loss(mean_loss, share.part, share.whole);
}

at::Tensor ReplicaContext::scale_loss(const at::Tensor& mean_loss, Count part, Count whole) const {
  check_is_current("scale_loss");
  if (!mean_loss.defined()) {
    throw UsageError("LS-NOT-DENSE", "scale_loss was given an undefined tensor",
                     "give the loss that the step computed");
  }
  if (!(part.value() >= 0 && whole.value() >= part.value() && std::isfinite(whole.value()))) {
    throw UsageError(
        "LS-OPTION", fmt::format("scale_loss was given part {} of whole {}", part.value(), whole.value()),
        "give finite counts with 0 <= part <= whole, the whole being the total over all replicas and micro-batches: "
        "ctx.all_reduce(Reduction::kSum, part) gives it");
  }
  if (!group_.evaluating()) {
    ++scale_calls_.all;
    if (part.value() > 0) ++scale_calls_.weighted;
    look_for_padding_in(mean_loss);
  }
  if (part.value() == 0) return internal::zero_that_keeps_graph(mean_loss);
  return part.value() == whole.value() ? mean_loss : internal::weighted_loss(mean_loss, part.value() / whole.value());
}

void ReplicaContext::look_for_padding_in(const at::Tensor& loss) const {
  if (share_.batches != 1 || padding_ == 0) return;
  if (!internal::depends_on_padding(loss, share_.part + padding_, share_.part)) return;
  group_.findings().add("LS-PADDING-COUNTED", "", group_.step(), [&] {
    return fmt::format(
        "step {}: replica {} was given {} and {} of padding (Remainder::kPad), and its loss depends on the padding, so "
        "that it is no mean over the samples; take the losses of all rows, and write "
        "ctx.scale_loss(batch.mean(losses))",
        group_.step(), group_.first_replica() + local_index_, internal::counted(share_.part, "sample"),
        internal::counted(padding_, "row"));
  });
}

int64_t ReplicaContext::global_batch_size() const { return the_batch("global_batch_size()").whole; }

at::Tensor ReplicaContext::all_reduce(Reduction reduction, const at::Tensor& value,
                                      const std::source_location& place) const {
  check_is_current("all_reduce");
  return internal::all_reduce(*this, reduction, value, place);
}

at::Tensor ReplicaContext::all_reduce_number(Reduction reduction, int64_t value,
                                             const std::source_location& place) const {
  return all_reduce(reduction, at::scalar_tensor(value, at::kLong), place);
}

at::Tensor ReplicaContext::all_reduce_number(Reduction reduction, double value,
                                             const std::source_location& place) const {
  return all_reduce(reduction, at::scalar_tensor(value, at::kDouble), place);
}

std::vector<at::Tensor> ReplicaContext::all_reduce(Reduction reduction, const std::vector<at::Tensor>& values,
                                                   const std::source_location& place) const {
  check_is_current("all_reduce");
  return internal::all_reduce(*this, reduction, values, place);
}

at::Tensor ReplicaContext::all_gather(const at::Tensor& value, int64_t axis, const std::source_location& place) const {
  check_is_current("all_gather");
  return internal::all_gather(*this, value, axis, place);
}

at::Tensor ReplicaContext::broadcast(ReplicaId from, const at::Tensor& value, const std::source_location& place) const {
  check_is_current("broadcast");
  return internal::broadcast(*this, from, value, place);
}

at::Generator ReplicaContext::random() const {
  check_is_current("random()");
  return group_.stream(local_index_).generator();
}

at::Generator ReplicaContext::shared_random() const {
  check_is_current("shared_random()");
  return group_.shared_stream(local_index_).generator();
}

void ReplicaContext::merge(internal::Meeting& meeting) const {
  check_is_current("merge_call");
  group_.meet(*this, meeting);
}

}  // namespace lockstep
