// One sum, mean, least or greatest of all replicas' tensors: each lane adds its slice in tree order.
// Walk: replica/replica_context.h -> here -> reduce/tree_sum.inc
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/reduce/stream_copy.h"
#include "lockstep/reduce/tree_sum.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/collectives.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The stretch of `count` elements that a lane takes, on borders of cache lines.
std::pair<int64_t, int64_t> slice_of(int64_t count, int lane, int num_lanes) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (count + kLine - 1) / kLine;
  const auto border = [&](int64_t l) { return std::min(count, lines * l / num_lanes * kLine); };
  return {border(lane), border(lane + 1)};
}

/// A result's memory. Small sums are called thousands of times a second, and the dispatcher costs as much as the sum.
at::Tensor empty_like_result(Reduction reduction, const at::Tensor& value) {
  const at::ScalarType type = result_type_of(reduction, value);
  if (value.device().is_cpu()) return at::Tensor(at::detail::empty_cpu(value.sizes(), type));
  return at::empty(value.sizes(), value.options().dtype(type));
}

class AllReduceMeeting final : public Meeting {
 public:
  /// Few tensors without an allocation.
  using Tensors = c10::SmallVector<at::Tensor, 2>;

  AllReduceMeeting(const ReplicaGroup& group, Reduction reduction, at::ArrayRef<at::Tensor> values, bool with_gradient)
      : group_(group), reduction_(reduction), with_gradient_(with_gradient) {
    const at::NoGradGuard no_grad;
    CallSignature words;
    words.add(static_cast<int64_t>(reduction));
    words.add(with_gradient ? 1 : 0);
    for (const at::Tensor& value : values) {
      check_dense("all_reduce", value);
      words.add_dtype_and_shape(value);
      inputs_.push_back(value.is_contiguous() && !value.is_neg() ? value : value.resolve_neg().contiguous());
      outputs_.push_back(empty_like_result(reduction, value));
      bytes_ += static_cast<int64_t>(value.nbytes());
    }
    signature_ = words.value();
  }

  const char* what() const override { return "all_reduce"; }
  uint64_t signature() const override { return signature_; }
  std::string describe() const override {
    std::string text = fmt::format("all_reduce({}", name_of(reduction_));
    for (std::size_t i = 0; i < inputs_.size() && i < 4; ++i) text += ", " + shape_text(inputs_[i]);
    if (inputs_.size() > 4) text += fmt::format(", ... {} tensors", inputs_.size());
    return text + (with_gradient_ ? ", with gradient)" : ")");
  }

  std::span<const Stage> stages() const override {
    static constexpr Stage alone[] = {once<&AllReduceMeeting::reduce_alone>("reduce")};
    static constexpr Stage together[] = {once<&AllReduceMeeting::collect>("collect"),
                                         on_each_lane<&AllReduceMeeting::reduce>("reduce")};
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
  void reduce(int lane, int num_lanes) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const at::ScalarType type = inputs_[i].scalar_type();
      const bool adds =
          (reduction_ == Reduction::kSum || reduction_ == Reduction::kMean) && group_.reduces_in_tree_order();
      if (adds && type == at::kFloat) {
        add_slice<float>(i, lane, num_lanes);
      } else if (adds && type == at::kDouble) {
        add_slice<double>(i, lane, num_lanes);
      } else if (static_cast<int>(i) % num_lanes == lane) {
        reduce_whole(i);
      }
    }
  }

  Tensors take_outputs() { return std::move(outputs_); }

 private:
  template <class T>
  void add_slice(std::size_t i, int lane, int num_lanes) {
    const auto replicas = static_cast<int64_t>(all_.size());
    const auto [begin, end] = slice_of(inputs_[i].numel(), lane, num_lanes);
    c10::SmallVector<const T*, 16> inputs;
    c10::SmallVector<T*, 16> outputs;
    for (const AllReduceMeeting* one : all_) {
      inputs.push_back(static_cast<const T*>(address_of(one->inputs_[i])));
      outputs.push_back(static_cast<T*>(one->outputs_[i].data_ptr()));
    }
    const bool mean = reduction_ == Reduction::kMean;
    const bool past_caches = static_cast<std::size_t>(bytes_) > kStreamedBytes;
    if (past_caches && replicas <= kOneRowReplicas && all_aligned(outputs)) {
      stream_tree_sum<T>()(inputs.data(), replicas, begin, end, mean, outputs.data());
      return;
    }
    thread_local std::vector<T> scratch;  // grown once
    const auto rows = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock);
    if (scratch.size() < rows) scratch.resize(rows);
    const TreeSum<T> sum_of = tree_sum<T>();
    const bool in_place = replicas <= kOneRowReplicas;
    for (int64_t offset = begin; offset < end; offset += kSumBlock) {
      const int64_t count = std::min(kSumBlock, end - offset);
      T* const room = in_place ? outputs.front() + offset : scratch.data();
      const T* sum = sum_of(inputs.data(), replicas, offset, count, room);
      if (mean) {
        const T divisor = static_cast<T>(replicas);
        for (int64_t j = 0; j < count; ++j) room[j] = sum[j] / divisor;
        sum = room;
      }
      const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
      for (T* output : outputs) {
        if (output + offset == sum) continue;
        if (past_caches) {
          stream_copy(output + offset, sum, bytes);
        } else {
          std::memcpy(output + offset, sum, bytes);
        }
      }
    }
    if (past_caches) end_stream_copies();
  }

  /// Slices begin on borders of lines, counted from an output's own begin.
  template <class T>
  static bool all_aligned(const c10::SmallVector<T*, 16>& outputs) {
    return std::all_of(outputs.begin(), outputs.end(),
                       [](T* output) { return reinterpret_cast<uintptr_t>(output) % kStreamAlignment == 0; });
  }

  void reduce_whole(std::size_t i) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> values;
    for (const AllReduceMeeting* one : all_) values.push_back(one->inputs_[i].detach());
    const at::Tensor result = group_.reduce(reduction_, values);
    for (AllReduceMeeting* one : all_) one->outputs_[i].copy_(result);
  }

  const ReplicaGroup& group_;
  const Reduction reduction_;
  const bool with_gradient_;
  uint64_t signature_ = 0;
  int64_t bytes_ = 0;  // of this replica's tensors; in the leading meeting, once collected, of all replicas'
  Tensors inputs_;
  Tensors outputs_;
  c10::SmallVector<AllReduceMeeting*, 16> all_;  // of the leading meeting only
};

AllReduceMeeting::Tensors meet_all_reduce(const ReplicaContext& context, Reduction reduction,
                                          at::ArrayRef<at::Tensor> values, bool with_gradient = false) {
  AllReduceMeeting meeting(ContextAccess::group(context), reduction, values, with_gradient);
  ContextAccess::group(context).meet(context, meeting);
  return meeting.take_outputs();
}

/// LibTorch's custom functions take tensors, not lists of them.
struct AllReduceFunction : torch::autograd::Function<AllReduceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value, const ReplicaContext* context,
                            int64_t reduction) {
    const auto kind = static_cast<Reduction>(reduction);
    at::Tensor output = meet_all_reduce(*context, kind, value, /*with_gradient=*/true).front();
    ctx->saved_data["reduction"] = reduction;
    if (kind == Reduction::kMin || kind == Reduction::kMax) {
      // Of equal extremes the lowest replica's counts: it alone gets the gradient.
      const int64_t id = context->replica_id();
      const at::Tensor nobody = at::full({}, context->num_replicas(), at::kLong);
      const at::Tensor claim = at::where(value.detach().eq(output), at::full({}, id, at::kLong), nobody);
      ctx->save_for_backward({meet_all_reduce(*context, Reduction::kMin, claim).front().eq(id)});
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
    return {gradient, at::Tensor(), at::Tensor()};  // context and reduction have none
  }
};

/// A list with gradient: the tensors of one dtype go through one meeting as one, in order of their dtypes' first ones.
std::vector<at::Tensor> all_reduce_with_gradient(const ReplicaContext& context, Reduction reduction,
                                                 const std::vector<at::Tensor>& values) {
  if (values.size() == 1) return {all_reduce(context, reduction, values.front())};
  std::vector<at::Tensor> results(values.size());
  for (std::size_t first = 0; first < values.size(); ++first) {
    if (results[first].defined()) continue;
    std::vector<std::size_t> alike;
    std::vector<at::Tensor> flat;
    std::vector<int64_t> lengths;
    for (std::size_t i = first; i < values.size(); ++i) {
      check_dense("all_reduce", values[i]);
      if (values[i].scalar_type() != values[first].scalar_type()) continue;
      alike.push_back(i);
      flat.push_back(values[i].flatten());
      lengths.push_back(values[i].numel());
    }
    const at::Tensor joined = AllReduceFunction::apply(at::cat(flat), &context, static_cast<int64_t>(reduction));
    const auto parts = joined.split_with_sizes(lengths);
    for (std::size_t k = 0; k < alike.size(); ++k) results[alike[k]] = parts[k].view(values[alike[k]].sizes());
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> all_reduce(const ReplicaContext& context, Reduction reduction,
                                   const std::vector<at::Tensor>& values) {
  if (needs_grad(values)) return all_reduce_with_gradient(context, reduction, values);
  auto results = meet_all_reduce(context, reduction, values);
  return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
}

at::Tensor all_reduce(const ReplicaContext& context, Reduction reduction, const at::Tensor& value) {
  if (!needs_grad(value)) return std::move(meet_all_reduce(context, reduction, value).front());
  return AllReduceFunction::apply(value, &context, static_cast<int64_t>(reduction));
}

}  // namespace lockstep::internal
