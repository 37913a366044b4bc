// all_reduce: the meeting to which replicas bring their tensors, and the gradient. reduce/ computes the result.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_in_lanes.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/pool/round.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_recorder.h"

namespace lockstep::internal::inline replica {

namespace {

using torch::autograd::variable_list;

/// The user's call, which must be equal on all replicas. It refers to the user's tensors.
struct AllReduceCall {
  Reduction reduction;
  at::ArrayRef<at::Tensor> values;
  bool with_gradient = false;
  std::source_location place = {};
  bool is_backward = false;  // of the call at that place

  uint64_t signature() const {
    Digest digest = Digest().with(reduction).with(with_gradient);
    for (const at::Tensor& value : values) digest = with_dtype_and_shape(digest, value);
    return digest.value();
  }
  std::string describe() const {
    std::string text = fmt::format("all_reduce({}", name_of(reduction));
    for (std::size_t i = 0; i < values.size() && i < 4; ++i) text += ", " + shape_text(values[i]);
    if (values.size() > 4) text += fmt::format(", ... {} tensors", values.size());
    if (is_backward) text += fmt::format(", in the backward of the one at {}", text_of(place));
    return text + (with_gradient ? ", with gradient)" : ")");
  }
};

void check_operands(at::ArrayRef<at::Tensor> values) {
  for (const at::Tensor& value : values) check_operand("all_reduce", value);
}

class AllReduceMeeting final : public Meeting {
 public:
  /// Holds two tensors without an allocation.
  using Tensors = c10::SmallVector<at::Tensor, 2>;

  AllReduceMeeting(const ReplicaGroup& group, const AllReduceCall& call)
      : group_(group), call_(call), signature_(call.signature()) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& value : call.values) {
      inputs_.push_back(plain_and_contiguous(value));
      outputs_.push_back(empty_result(call.reduction, value));
      bytes_ += static_cast<int64_t>(value.nbytes());
    }
  }

  const char* what() const override { return "all_reduce"; }
  uint64_t signature() const override { return signature_; }
  std::string describe() const override { return call_.describe(); }
  /// A backward has none: the order of nodes in it follows from the forward's.
  std::source_location place() const override { return call_.is_backward ? std::source_location() : call_.place; }

  std::span<const Stage> stages() const override {
    static constexpr Stage alone[] = {once<&AllReduceMeeting::reduce_alone>("reduce")};
    static constexpr Stage together[] = {once<&AllReduceMeeting::collect>("collect"),
                                         on_each_lane<&AllReduceMeeting::reduce>("reduce")};
    static constexpr Stage across[] = {once<&AllReduceMeeting::reduce_across>("reduce across workers")};
    if (group_.num_workers() > 1) return across;
    // Adding this much takes less time than lanes need to meet once more.
    constexpr int64_t kAlone = 16 << 10;
    if (bytes_ * group_.num_local_replicas() <= kAlone) return alone;
    return together;
  }

  void collect(std::span<Meeting* const> all) {
    for (Meeting* meeting : all) all_.push_back(static_cast<AllReduceMeeting*>(meeting));
    bytes_ *= static_cast<int64_t>(all.size());
  }
  void reduce_alone(std::span<Meeting* const> all) {
    collect(all);
    reduce(0, 1);
  }
  void reduce_across(std::span<Meeting* const> all) {
    collect(all);
    std::vector<at::Tensor> mine(all.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      for (std::size_t r = 0; r < all.size(); ++r) mine[r] = all_[r]->inputs_[i];
      const at::Tensor result = group_.reduce(call_.reduction, mine);
      for (AllReduceMeeting* one : all_) write_result(one->outputs_[i], result);
    }
  }
  void reduce(int lane, int num_lanes) {
    const bool past_caches = static_cast<std::size_t>(bytes_) > kStreamedBytes;
    c10::SmallVector<ReducedTensor, 16> tensors;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      tensors.clear();
      for (AllReduceMeeting* one : all_) tensors.push_back({&one->inputs_[i], &one->outputs_[i]});
      const bool has_whole = static_cast<int>(i) % num_lanes == lane;
      reduce_in_lanes(group_.reducer(), call_.reduction, tensors, {lane, num_lanes, has_whole}, past_caches);
    }
  }

  Tensors take_outputs() { return std::move(outputs_); }

 private:
  const ReplicaGroup& group_;
  const AllReduceCall call_;
  const uint64_t signature_;
  int64_t bytes_ = 0;  // of this replica's tensors; in the leading meeting, once collected, of all replicas'
  Tensors inputs_;
  Tensors outputs_;
  c10::SmallVector<AllReduceMeeting*, 16> all_;  // of the leading meeting only
};

AllReduceMeeting::Tensors meet_all_reduce(const ReplicaContext& context, const AllReduceCall& call) {
  std::optional<RecordedCall> recorded;
  if (StepRecorder::current()) {
    recorded.emplace(call.describe(), call.values,
                     [reduction = call.reduction, with_gradient = call.with_gradient, place = call.place,
                      is_backward = call.is_backward](const ReplicaContext& again, std::span<const at::Tensor> values) {
                       const auto results = meet_all_reduce(
                           again, {reduction, {values.data(), values.size()}, with_gradient, place, is_backward});
                       return std::vector<at::Tensor>(results.begin(), results.end());
                     });
  }
  AllReduceMeeting meeting(ContextAccess::group(context), call);
  ContextAccess::group(context).meet(context, meeting);
  auto results = meeting.take_outputs();
  if (recorded) recorded->end({results.data(), results.size()});
  return results;
}

std::vector<at::Tensor> all_reduce_with_gradient(const ReplicaContext& context, const AllReduceCall& call,
                                                 torch::autograd::Node* also_to);

std::vector<at::Tensor> all_reduce_without_gradient(const ReplicaContext& context, const AllReduceCall& call) {
  auto results = meet_all_reduce(context, call);
  return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
}

/// The node of the graph behind the results of one call, which are its inputs in a backward. It is no
/// torch::autograd::Function, because those do not take lists of tensors in all versions.
struct AllReduceBackward final : torch::autograd::Node {
  AllReduceBackward(Reduction reduction, const std::source_location& call) : kind(reduction), place(call) {}

  variable_list apply(variable_list&& gradients) override {
    const ReplicaContext& context = context_of_backward("all_reduce");
    // Invariant: every replica meets with the same list, whichever of its results a replica has used.
    std::vector<at::Tensor> given;
    for (const std::size_t i : differentiable) {
      given.push_back(gradients[i].defined() ? gradients[i] : input_metadata(i).zeros_like());
    }
    const bool is_extreme = kind == Reduction::kMin || kind == Reduction::kMax;
    // A replica's gradient may depend on nothing where those of others do not. Yet every replica has to come to this
    // node in a backward through the sums. So the sums have a graph on every replica, which leads here.
    const bool create_graph = at::GradMode::is_enabled();
    const AllReduceCall call{is_extreme ? Reduction::kSum : kind, given, create_graph, place, true};
    const std::vector<at::Tensor> sums =
        create_graph ? all_reduce_with_gradient(context, call, this) : all_reduce_without_gradient(context, call);
    variable_list results(num_outputs());
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const std::size_t i = differentiable[k];
      if (!should_compute_output(i)) continue;
      results[i] = is_extreme ? at::where(mine[k].unpack(), sums[k], at::zeros_like(sums[k])) : sums[k];
    }
    return results;
  }
  void release_variables() override {
    for (torch::autograd::SavedVariable& one : mine) one.reset_data();
  }

  const Reduction kind;
  const std::source_location place;                  // of the call in the forward
  std::vector<std::size_t> differentiable;           // the tensors of the call that can have a gradient
  std::vector<torch::autograd::SavedVariable> mine;  // of an extreme: where this replica gets the gradient
};

/// Of an extreme: where `context`'s replica gets the gradient. Where several replicas have the extreme value, the
/// lowest of them alone gets it.
std::vector<at::Tensor> mine_among(const ReplicaContext& context, const std::vector<at::Tensor>& values,
                                   const std::vector<at::Tensor>& results) {
  const int64_t id = context.replica_id();
  const at::Tensor nobody = at::full({}, ContextAccess::group(context).num_replicas(), at::kLong);
  std::vector<at::Tensor> claims;
  for (std::size_t k = 0; k < values.size(); ++k) {
    claims.push_back(at::where(values[k].eq(results[k]), at::full({}, id, at::kLong), nobody));
  }
  claims = all_reduce(context, Reduction::kMin, claims, {});
  for (at::Tensor& claim : claims) claim = claim.eq(id);
  return claims;
}

/// Each result is a tensor of its own, and not a view of one: a view of several cannot be written in place. A backward
/// from the results goes to `also_to` too, with no gradient of its own; null: to no other node.
std::vector<at::Tensor> all_reduce_with_gradient(const ReplicaContext& context, const AllReduceCall& call,
                                                 torch::autograd::Node* also_to) {
  const auto node = make_autograd_node<AllReduceBackward>(call.reduction, call.place);
  node->set_next_edges(torch::autograd::collect_next_edges(call.values));
  if (also_to) node->add_next_edge({pointer_to(*also_to), 0});
  std::vector<at::Tensor> results;
  {
    const at::NoGradGuard no_grad;
    auto outputs = meet_all_reduce(context, call);
    results.assign(std::make_move_iterator(outputs.begin()), std::make_move_iterator(outputs.end()));
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> extremes;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!torch::autograd::isDifferentiableType(call.values[i].scalar_type())) continue;
      node->differentiable.push_back(i);
      values.push_back(call.values[i].detach());
      extremes.push_back(results[i]);
    }
    if (call.reduction == Reduction::kMin || call.reduction == Reduction::kMax) {
      for (const at::Tensor& one : mine_among(context, values, extremes)) node->mine.emplace_back(one, false);
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (torch::autograd::isDifferentiableType(call.values[i].scalar_type())) {
      torch::autograd::set_history(results[i], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> all_reduce(const ReplicaContext& context, Reduction reduction,
                                   const std::vector<at::Tensor>& values, const std::source_location& place) {
  check_operands(values);
  const AllReduceCall call{reduction, values, needs_grad(values), place};
  return call.with_gradient ? all_reduce_with_gradient(context, call, nullptr)
                            : all_reduce_without_gradient(context, call);
}

at::Tensor all_reduce(const ReplicaContext& context, Reduction reduction, const at::Tensor& value,
                      const std::source_location& place) {
  check_operands(value);
  const AllReduceCall call{reduction, value, needs_grad(value), place};
  if (call.with_gradient) return std::move(all_reduce_with_gradient(context, call, nullptr).front());
  return std::move(meet_all_reduce(context, call).front());
}

}  // namespace lockstep::internal::replica
