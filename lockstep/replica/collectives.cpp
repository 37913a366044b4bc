// all_gather and broadcast: their meetings, and the gradient of all_gather. all_reduce.cpp has the reductions.
#include "lockstep/replica/collectives.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_recorder.h"

namespace lockstep::internal::inline replica {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AllGatherMeeting final : public Meeting {
 public:
  AllGatherMeeting(const ReplicaGroup& group, const at::Tensor& value, int64_t axis, bool with_gradient,
                   const std::source_location& place)
      : group_(group),
        place_(place),
        axis_(checked_axis("all_gather", axis, value.dim())),
        with_gradient_(with_gradient) {
    value_ = value.detach();
    signature_ = with_dtype_and_shape(Digest().with(axis_).with(with_gradient_), value, axis_).value();
  }

  const char* what() const override { return "all_gather"; }
  uint64_t signature() const override { return signature_; }
  std::string describe() const override {
    return fmt::format("all_gather({}, axis {}{})", shape_text(value_), axis_, with_gradient_ ? ", with gradient" : "");
  }
  std::source_location place() const override { return place_; }

  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {once<&AllGatherMeeting::join>("join"),
                                    on_each_lane<&AllGatherMeeting::copy>("copy")};
    return all;
  }

  void join(std::span<Meeting* const> all) {
    std::vector<at::Tensor> mine;
    for (Meeting* meeting : all) {
      all_.push_back(static_cast<AllGatherMeeting*>(meeting));
      mine.push_back(all_.back()->value_);
    }
    const std::vector<at::Tensor> values = group_.of_all_replicas(mine);
    int64_t offset = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
      const ReplicaId id = static_cast<int64_t>(r);
      if (group_.block().has(id)) all_[static_cast<std::size_t>(group_.block().local_index_of(id))]->offset_ = offset;
      offset += values[r].size(axis_);
    }
    joined_ = joined("all_gather", values, axis_);
  }
  void copy(int lane, int num_lanes) {
    for (std::size_t r = static_cast<std::size_t>(lane); r < all_.size(); r += static_cast<std::size_t>(num_lanes)) {
      all_[r]->output_ = copied(joined_);
    }
  }

  const at::Tensor& output() const { return output_; }
  int64_t axis() const { return axis_; }
  int64_t offset() const { return offset_; }

 private:
  const ReplicaGroup& group_;
  const std::source_location place_;
  const int64_t axis_;
  const bool with_gradient_;
  uint64_t signature_ = 0;
  at::Tensor value_;
  at::Tensor output_;
  int64_t offset_ = 0;
  at::Tensor joined_;  // of the leading meeting only, as is all_
  std::vector<AllGatherMeeting*> all_;
};

struct AllGatherFunction : torch::autograd::Function<AllGatherFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value, const ReplicaContext* context, int64_t axis,
                            bool with_gradient, const std::source_location* place) {
    AllGatherMeeting meeting(ContextAccess::group(*context), value, axis, with_gradient, *place);
    std::optional<RecordedCall> recorded;
    const auto known_offset = std::make_shared<int64_t>(0);
    if (StepRecorder::current()) {
      recorded.emplace(meeting.describe(), std::span(&value, 1),
                       [axis, with_gradient, known_offset, place = *place](const ReplicaContext& again,
                                                                           std::span<const at::Tensor> values) {
                         return gathered_again(again, values.front(), axis, with_gradient, *known_offset, place);
                       });
    }
    ContextAccess::group(*context).meet(*context, meeting);
    *known_offset = meeting.offset();
    if (recorded) recorded->end(std::span(&meeting.output(), 1));
    ctx->saved_data["axis"] = meeting.axis();
    ctx->saved_data["offset"] = meeting.offset();
    ctx->saved_data["length"] = value.size(meeting.axis());
    return meeting.output();
  }

  /// In a recorded step, whose backward takes the gradient from where it was.
  static std::vector<at::Tensor> gathered_again(const ReplicaContext& context, const at::Tensor& value, int64_t axis,
                                                bool with_gradient, int64_t offset, const std::source_location& place) {
    AllGatherMeeting meeting(ContextAccess::group(context), value, axis, with_gradient, place);
    ContextAccess::group(context).meet(context, meeting);
    if (meeting.offset() != offset) {
      throw DivergenceError("LS-CAPTURE-SHAPE",
                            "a captured step departs from its recording: the tensors that other replicas bring to "
                            "all_gather have other sizes now",
                            "give all replicas batches whose sizes follow from the global batch, as distribute() does, "
                            "or run this step without capture()");
    }
    return {meeting.output()};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto sum = all_reduce(context_of_backward("all_gather"), Reduction::kSum, gradients, {});
    return {sum.front().narrow(ctx->saved_data["axis"].toInt(), ctx->saved_data["offset"].toInt(),
                               ctx->saved_data["length"].toInt()),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class BroadcastMeeting final : public Meeting {
 public:
  BroadcastMeeting(const ReplicaGroup& group, ReplicaId from, at::Tensor value, const std::source_location& place)
      : group_(group), place_(place), from_(from), value_(std::move(value)) {}

  const char* what() const override { return "broadcast"; }
  uint64_t signature() const override { return static_cast<uint64_t>(from_.value()); }
  std::string describe() const override { return fmt::format("broadcast(from replica {})", from_.value()); }
  std::source_location place() const override { return place_; }
  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {once<&BroadcastMeeting::copy>("copy")};
    return all;
  }
  void copy(std::span<Meeting* const> all) {
    at::Tensor source;
    if (group_.block().has(from_)) {
      const auto local = static_cast<std::size_t>(group_.block().local_index_of(from_));
      source = static_cast<BroadcastMeeting*>(all[local])->value_;
      check_operand("broadcast", source, from_.value());
    }
    source = group_.of_replica(from_, source);
    for (Meeting* meeting : all) static_cast<BroadcastMeeting*>(meeting)->value_ = copied(source);
  }
  const at::Tensor& value() const { return value_; }

 private:
  const ReplicaGroup& group_;
  const std::source_location place_;
  const ReplicaId from_;
  at::Tensor value_;
};

}  // namespace

at::Tensor all_gather(const ReplicaContext& context, const at::Tensor& value, int64_t axis,
                      const std::source_location& place) {
  check_operand("all_gather", value);
  return AllGatherFunction::apply(value, &context, axis, needs_grad(value), &place);
}

at::Tensor broadcast(const ReplicaContext& context, ReplicaId from, const at::Tensor& value,
                     const std::source_location& place) {
  const int64_t replicas = ContextAccess::group(context).num_replicas();
  if (from < 0 || from >= replicas) {
    throw UsageError("LS-REPLICA-RANGE",
                     fmt::format("broadcast was asked for replica {} of {}", from.value(), replicas),
                     fmt::format("choose a replica from 0 to {}", replicas - 1));
  }
  BroadcastMeeting meeting(ContextAccess::group(context), from, value, place);
  ContextAccess::group(context).meet(context, meeting);
  return meeting.value();
}

}  // namespace lockstep::internal::replica
