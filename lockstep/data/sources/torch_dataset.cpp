#include "lockstep/data/sources/torch_dataset.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/rows.h"

namespace lockstep::internal::inline data {

namespace {

/// Throws unless all examples are alike.
at::Tensor stack(const std::vector<at::Tensor>& all, const char* what, std::span<const int64_t> ids) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].sizes() == all[0].sizes() && all[i].scalar_type() == all[0].scalar_type()) continue;
    throw DataError(
        "LS-SAMPLE-SHAPE",
        fmt::format("a torch::data data set gives samples of different shapes: the {} is {} in sample {} and {} in "
                    "sample {}",
                    what, text_of(all[0]), ids[0], text_of(all[i]), ids[i]),
        kHowToJoin);
  }
  return at::stack(all);
}

}  // namespace

at::Tensor number_tensor(bool number) { return at::scalar_tensor(number, at::kBool); }
at::Tensor number_tensor(int64_t number) { return at::scalar_tensor(number, at::kLong); }
at::Tensor number_tensor(double number) { return at::scalar_tensor(number, c10::get_default_dtype()); }

void throw_needs_collate(const std::type_info& example) {
  throw UsageError(
      "LS-COLLATE",
      fmt::format("the samples of a torch::data data set are of the type {}, which is no tensor with a tensor or a "
                  "number as its target",
                  c10::demangle(example.name())),
      "give distribute() a function of these, .collate = [](const std::vector<Example>& samples) { return Batch{...}; "
      "}, and the data set as from_torch() made it");
}

Batch stacked(const std::vector<TorchExample>& examples, std::span<const int64_t> ids,
              const std::optional<TorchExample>& like) {
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
  batch.input = stack(data, "data", ids);
  batch.target = targets.empty() ? at::empty({batch.input.size(0), 0}) : stack(targets, "target", ids);
  return batch;
}

Batch as_rows(const TorchExample& rows) {
  return {.input = rows.data,
          .target = rows.target.defined() ? rows.target : at::empty({std::max<int64_t>(rows_of(rows.data), 0), 0})};
}

void throw_no_size() {
  throw UsageError("LS-OPTION", "from_torch was given a data set whose size() is not known",
                   "give one that can be read by index; read others as a Stream: lockstep::data::from_generator");
}

}  // namespace lockstep::internal::data
