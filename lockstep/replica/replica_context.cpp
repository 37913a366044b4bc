#include "lockstep/replica/replica_context.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/replica/loss/padding_check.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_recorder.h"

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
  losses_->ask_for_counts();
  return group_.num_replicas();
}

c10::Device ReplicaContext::device() const {
  check_is_current("device()");
  return c10::Device(c10::kCPU);
}

int64_t ReplicaContext::step() const {
  check_is_current("step()");
  internal::refuse_recording("asks for ctx.step(), a number that is another one in each run");
  return group_.step();
}

at::Tensor ReplicaContext::scale_loss(const at::Tensor& mean_loss, const std::source_location& place) const {
  const Share& share = the_batch("scale_loss(mean_loss)");
  return weigh(mean_loss, share.part, share.whole, /*is_of_batch=*/true, place);
}

at::Tensor ReplicaContext::scale_loss(const at::Tensor& mean_loss, Count part, Count whole,
                                      const std::source_location& place) const {
  check_is_current("scale_loss");
  return weigh(mean_loss, part, whole, /*is_of_batch=*/false, place);
}

at::Tensor ReplicaContext::weigh(const at::Tensor& mean_loss, Count part, Count whole, bool is_of_batch,
                                 const std::source_location& place) const {
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
  const bool is_whole = part.value() == whole.value();
  const double weight = part.value() == 0 ? 0 : part.value() / whole.value();
  // What a replay does beside the product, which is an operator with the weight as a constant.
  const auto look_again = [weight, is_of_batch](const ReplicaContext& context, std::span<const at::Tensor> losses) {
    const Share& share = context.share_;
    const double now = share.part == 0 ? 0 : static_cast<double>(share.part) / static_cast<double>(share.whole);
    if (is_of_batch && now != weight) {
      throw DivergenceError("LS-CAPTURE-SHAPE",
                            fmt::format("a captured step departs from its recording: its replica's part of the batch "
                                        "has the weight {} now, and had {}",
                                        now, weight),
                            "give the captured step the Batch that run() is given");
    }
    if (weight > 0 && !context.group_.evaluating())
      context.had_loss_not_finite_ = context.had_loss_not_finite_ || internal::is_seen_not_finite(losses.front());
    return std::vector<at::Tensor>();
  };
  if (internal::StepRecorder::current()) internal::RecordedCall("scale_loss", {&mean_loss, 1}, look_again).end();
  if (group_.evaluating()) {
    if (part.value() == 0) return internal::zero_that_keeps_graph(mean_loss);
    return is_whole ? mean_loss : internal::weighted_loss(mean_loss, weight);
  }
  internal::replica_trace.go_on_as("backward");  // that is what follows a weighed loss
  look_for_padding_in(mean_loss);
  const internal::ScaledLosses::Loss loss{weight, is_of_batch, share_.part + padding_, place};
  if (!mean_loss.requires_grad()) {  // it weighs something else, such as a gradient by hand; no backward will tell
    losses_->ask_for_counts();
    internal::ScaledLosses::went_through(losses_, loss, nullptr, mean_loss);
  }
  if (part.value() == 0) {
    const at::Tensor zero = internal::zero_that_keeps_graph(mean_loss);
    internal::watch_backward(zero, mean_loss, loss, losses_);
    return zero;
  }
  had_loss_not_finite_ = had_loss_not_finite_ || internal::is_seen_not_finite(mean_loss);
  if (!is_whole) return internal::weighted_loss(mean_loss, loss, losses_);
  if (group_.num_replicas() == 1) {
    losses_->count_whole();
  } else {
    internal::watch_backward(mean_loss, mean_loss, loss, losses_);
  }
  return mean_loss;
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

int64_t ReplicaContext::global_batch_size() const {
  losses_->ask_for_counts();
  return the_batch("global_batch_size()").whole;
}

void ReplicaContext::look_for_counts_in(Reduction reduction, const at::Tensor& value) const {
  if (reduction == Reduction::kSum && value.defined() && !value.requires_grad()) losses_->ask_for_counts();
}

at::Tensor ReplicaContext::all_reduce(Reduction reduction, const at::Tensor& value,
                                      const std::source_location& place) const {
  check_is_current("all_reduce");
  look_for_counts_in(reduction, value);
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
  for (const at::Tensor& value : values) look_for_counts_in(reduction, value);
  return internal::all_reduce(*this, reduction, values, place);
}

at::Tensor ReplicaContext::all_gather(const at::Tensor& value, int64_t axis, const std::source_location& place) const {
  check_is_current("all_gather");
  look_for_counts_in(Reduction::kSum, value);
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
  losses_->ask_for_counts();  // it may give each replica anything
  group_.meet(*this, meeting);
}

}  // namespace lockstep
