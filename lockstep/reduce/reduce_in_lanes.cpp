#include "lockstep/reduce/reduce_in_lanes.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/kernels.h"
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

void add_slice(c10::ArrayRef<ReducedTensor> tensors, bool mean, const LanePart& part, bool past_caches) {
  const auto [begin, end] = slice_of(tensors.front().input->numel(), part);
  c10::SmallVector<const void*, 16> inputs;
  c10::SmallVector<void*, 16> outputs;
  for (const ReducedTensor& one : tensors) {
    inputs.push_back(address_of(*one.input));
    outputs.push_back(one.output->data_ptr());
  }
  kernels_of(*tensors.front().input)
      .sum({.type = tensors.front().input->scalar_type(),
            .inputs = {inputs.data(), inputs.size()},
            .outputs = {outputs.data(), outputs.size()},
            .begin = begin,
            .end = end,
            .mean = mean,
            .past_caches = past_caches});
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
  if (adds_slices) {
    add_slice(tensors, mean, part, past_caches);
  } else if (part.has_whole) {
    reduce_whole(reducer, reduction, tensors);
  }
}

void write_result(at::Tensor& output, const at::Tensor& result) { copy_bytes(output, result.contiguous()); }

}  // namespace lockstep::internal::reduce
