#include "lockstep/data/rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

int64_t rows_of(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : -1; }

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_rows(const at::Tensor& tensor, const char* call, const char* what) {
  const auto is = [&](const std::string& kind) { return fmt::format("{} was given {} as {}", call, kind, what); };
  if (!tensor.defined()) throw UsageError("LS-NOT-DENSE", is("an undefined tensor"), "give a dense tensor");
  if (tensor.layout() != at::kStrided) {
    throw UsageError("LS-NOT-DENSE", is("a sparse tensor"), "give a dense tensor: value.to_dense()");
  }
  if (!tensor.device().is_cpu()) {
    throw UsageError("LS-NOT-HOST", is(fmt::format("a tensor on {}", tensor.device().str())),
                     "give a tensor in the host's memory: value.cpu()");
  }
  if (tensor.dim() == 0) {
    throw UsageError("LS-BATCH", is("a tensor without dimensions"), "give a tensor with one row for each sample");
  }
}

}  // namespace lockstep::internal::data
