#include "lockstep/data/torch_dataset.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/data/rows.h"

namespace lockstep::internal {

Batch stacked(const std::vector<TorchExample>& examples, const std::optional<TorchExample>& like) {
  const at::NoGradGuard no_grad;
  Batch batch;
  if (examples.empty()) {
    const auto none_of = [](const at::Tensor& one) { return at::empty_like(one.unsqueeze(0).narrow(0, 0, 0)); };
    batch.input = like ? none_of(like->data) : at::empty({0});
    batch.target = like && like->target.defined() ? none_of(like->target) : at::empty({0, 0});
    return batch;
  }
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> targets;
  for (const TorchExample& example : examples) {
    data.push_back(example.data);
    if (example.target.defined()) targets.push_back(example.target);
  }
  batch.input = at::stack(data);
  batch.target = targets.empty() ? at::empty({batch.input.size(0), 0}) : at::stack(targets);
  return batch;
}

Batch as_rows(const TorchExample& rows) {
  return {.input = rows.data,
          .target = rows.target.defined() ? rows.target : at::empty({std::max<int64_t>(rows_of(rows.data), 0), 0})};
}

void throw_no_size() {
  throw UsageError("LS-OPTION", "from_torch was given a data set whose size() is not known",
                   "give one that can be read by index; read others as a Stream: data::from_generator");
}

}  // namespace lockstep::internal
