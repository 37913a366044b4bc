// all_reduce: the meeting to which replicas bring their tensors, and the gradient. reduce/ computes the result.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <iterator>
#include <utility>

#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_in_lanes.h"
#include "lockstep/reduce/stream_copy.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The user's call, which must be equal on all replicas. It refers to the user's tensors.
struct AllReduceCall {
  Reduction reduction;
  at::ArrayRef<at::Tensor> values;
  bool with_gradient = false;

  uint64_t signature() const {
    CallSignature words;
    words.add(static_cast<int64_t>(reduction));
    words.add(with_gradient ? 1 : 0);
    for (const at::Tensor& value : values) words.add_dtype_and_shape(value);
    return words.value();
  }
  std::string describe() const {
    std::string text = fmt::format("all_reduce({}", name_of(reduction));
    for (std::size_t i = 0; i < values.size() && i < 4; ++i) text += ", " + shape_text(values[i]);
    if (values.size() > 4) text += fmt::format(", ... {} tensors", values.size());
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

  /// `values` are the tensors that are reduced for `call`: the call's tensors, or several of them joined to one.
  AllReduceMeeting(const ReplicaGroup& group, const AllReduceCall& call, at::ArrayRef<at::Tensor> values)
      : group_(group), call_(call), signature_(call.signature()) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& value : values) {
      inputs_.push_back(plain_and_contiguous(value));
      outputs_.push_back(empty_result(call.reduction, value));
      bytes_ += static_cast<int64_t>(value.nbytes());
    }
  }

  const char* what() const override { return "all_reduce"; }
  uint64_t signature() const override { return signature_; }
  std::string describe() const override { return call_.describe(); }

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
      for (AllReduceMeeting* one : all_) one->outputs_[i] = result.clone();
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

AllReduceMeeting::Tensors meet_all_reduce(const ReplicaContext& context, const AllReduceCall& call,
                                          at::ArrayRef<at::Tensor> values) {
  AllReduceMeeting meeting(ContextAccess::group(context), call, values);
  ContextAccess::group(context).meet(context, meeting);
  return meeting.take_outputs();
}

/// LibTorch's custom functions take tensors, not lists of them: `value` is the call's only tensor, or several of its
/// tensors joined.
struct AllReduceFunction : torch::autograd::Function<AllReduceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value, const ReplicaContext* context,
                            const AllReduceCall* call) {
    at::Tensor output = meet_all_reduce(*context, *call, value).front();
    ctx->saved_data["reduction"] = static_cast<int64_t>(call->reduction);
    if (call->reduction == Reduction::kMin || call->reduction == Reduction::kMax) {
      // Where several replicas have the extreme value, the lowest of them alone gets the gradient.
      const int64_t id = context->replica_id();
      const at::Tensor nobody = at::full({}, context->num_replicas(), at::kLong);
      const at::Tensor claim = at::where(value.detach().eq(output), at::full({}, id, at::kLong), nobody);
      ctx->save_for_backward({all_reduce(*context, Reduction::kMin, claim).eq(id)});
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const ReplicaContext& context = context_of_backward("all_reduce");
    const auto kind = static_cast<Reduction>(ctx->saved_data["reduction"].toInt());
    at::Tensor gradient = gradients.front();
    if (kind == Reduction::kSum || kind == Reduction::kMean) {
      gradient = all_reduce(context, kind, gradient);
    } else {
      gradient = all_reduce(context, Reduction::kSum, gradient);
      gradient = at::where(ctx->get_saved_variables().front(), gradient, at::zeros_like(gradient));
    }
    return {gradient, at::Tensor(), at::Tensor()};  // context and call have none
  }
};

/// A list with gradient: the tensors of one dtype are joined and go through one meeting, in the order in which the
/// dtypes first appear. Each of these meetings has the signature of the whole call, so that replicas whose lists differ
/// anywhere do not agree.
std::vector<at::Tensor> all_reduce_with_gradient(const ReplicaContext& context, const AllReduceCall& call) {
  const at::ArrayRef<at::Tensor> values = call.values;
  if (values.size() == 1) return {AllReduceFunction::apply(values.front(), &context, &call)};
  std::vector<at::Tensor> results(values.size());
  for (std::size_t first = 0; first < values.size(); ++first) {
    if (results[first].defined()) continue;
    std::vector<std::size_t> alike;
    std::vector<at::Tensor> flat;
    std::vector<int64_t> lengths;
    for (std::size_t i = first; i < values.size(); ++i) {
      if (values[i].scalar_type() != values[first].scalar_type()) continue;
      alike.push_back(i);
      flat.push_back(values[i].flatten());
      lengths.push_back(values[i].numel());
    }
    const at::Tensor joined = AllReduceFunction::apply(at::cat(flat), &context, &call);
    const auto parts = joined.split_with_sizes(lengths);
    for (std::size_t k = 0; k < alike.size(); ++k) results[alike[k]] = parts[k].view(values[alike[k]].sizes());
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> all_reduce(const ReplicaContext& context, Reduction reduction,
                                   const std::vector<at::Tensor>& values) {
  check_operands(values);
  const AllReduceCall call{reduction, values, needs_grad(values)};
  if (call.with_gradient) return all_reduce_with_gradient(context, call);
  auto results = meet_all_reduce(context, call, values);
  return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
}

at::Tensor all_reduce(const ReplicaContext& context, Reduction reduction, const at::Tensor& value) {
  check_operands(value);
  const AllReduceCall call{reduction, value, needs_grad(value)};
  if (call.with_gradient) return AllReduceFunction::apply(value, &context, &call);
  return std::move(meet_all_reduce(context, call, value).front());
}

}  // namespace lockstep::internal
