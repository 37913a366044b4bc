#include "lockstep/reduce/reduce_in_lanes.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep::internal::inline reduce {

namespace {

/// The range of `count` elements that a lane takes, on borders of cache lines.
std::pair<int64_t, int64_t> slice_of(int64_t count, const LanePart& part) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (count + kLine - 1) / kLine;
  const auto border = [&](int64_t l) { return std::min(count, lines * l / part.num_lanes * kLine); };
  return {border(part.lane), border(part.lane + 1)};
}

/// Whether every output begins at a multiple of kStreamAlignment; then every slice does, because it begins a number of
/// whole cache lines after the output's begin.
template <class T>
bool all_aligned(c10::ArrayRef<T*> outputs) {
  return std::all_of(outputs.begin(), outputs.end(),
                     [](const T* output) { return reinterpret_cast<uintptr_t>(output) % kStreamAlignment == 0; });
}

template <class T>
void add_slice(c10::ArrayRef<ReducedTensor> tensors, bool mean, const LanePart& part, bool past_caches) {
  const auto replicas = static_cast<int64_t>(tensors.size());
  const auto [begin, end] = slice_of(tensors.front().input->numel(), part);
  c10::SmallVector<const T*, 16> inputs;
  c10::SmallVector<T*, 16> outputs;
  for (const ReducedTensor& one : tensors) {
    inputs.push_back(static_cast<const T*>(address_of(*one.input)));
    outputs.push_back(static_cast<T*>(one.output->data_ptr()));
  }
  if (past_caches && replicas <= kOneRowReplicas && all_aligned<T>(outputs)) {
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

void reduce_whole(const Reducer& reducer, Reduction reduction, c10::ArrayRef<ReducedTensor> tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const ReducedTensor& one : tensors) values.push_back(one.input->detach());
  const at::Tensor result = reduce_by(reducer, reduction, values);
  for (const ReducedTensor& one : tensors) write_result(*one.output, result);
}

}  // namespace

at::Tensor empty_result(Reduction reduction, const at::Tensor& value) {
  // Small reductions run thousands of times a second, and the dispatcher would cost as much as the sum.
  return at::Tensor(at::detail::empty_cpu(value.sizes(), result_type_of(reduction, value)));
}

void reduce_in_lanes(const Reducer& reducer, Reduction reduction, c10::ArrayRef<ReducedTensor> tensors,
                     const LanePart& part, bool past_caches) {
  const at::ScalarType type = tensors.front().input->scalar_type();
  const bool mean = reduction == Reduction::kMean;
  const bool adds_slices =
      (mean || reduction == Reduction::kSum) && (type == at::kFloat || type == at::kDouble) && reducer.in_tree_order();
  if (!adds_slices) {
    if (part.has_whole) reduce_whole(reducer, reduction, tensors);
  } else if (type == at::kFloat) {
    add_slice<float>(tensors, mean, part, past_caches);
  } else {
    add_slice<double>(tensors, mean, part, past_caches);
  }
}

void write_result(at::Tensor& output, const at::Tensor& result) {
  if (result.numel() == 0) return;
  const at::Tensor dense = result.contiguous();
  std::memcpy(output.data_ptr(), address_of(dense), dense.nbytes());
}

}  // namespace lockstep::internal::reduce
