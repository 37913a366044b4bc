#include "lockstep/reduce/operands.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline reduce {

void check_operand(const char* call, const at::Tensor& value, std::optional<int64_t> replica) {
  const bool dense = value.defined() && value.layout() == at::kStrided && !value.is_nested();
  if (dense && value.device().is_cpu() && !at::isQIntType(value.scalar_type())) return;
  const auto fact = [&](const std::string& what) {
    return fmt::format("{} was given {} tensor{}", call, what, replica ? fmt::format(" for replica {}", *replica) : "");
  };
  if (!dense) {
    throw UsageError("LS-NOT-DENSE",
                     fact(!value.defined()                 ? "an undefined"
                          : value.layout() == at::kStrided ? "a nested"
                                                           : "a sparse"),
                     "give a dense tensor");
  }
  if (!value.device().is_cpu()) {
    throw UsageError("LS-NOT-HOST", fact("a " + value.device().str()),
                     "give a tensor in the host's memory: value.cpu(), or for \"meta\" one that has values");
  }
  throw UsageError("LS-DTYPE", fact(fmt::format("a quantized ({})", c10::toString(value.scalar_type()))),
                   "give its values: value.dequantize()");
}

at::Tensor plain(const at::Tensor& value) {
  if (value._is_zerotensor()) return value.detach().clone();  // zeros without memory, which a copy of them has
  return value.detach().resolve_conj().resolve_neg();
}

at::Tensor plain_and_contiguous(const at::Tensor& value) {
  if (LazyTensor* const lazy = lazy_tensor(value)) lazy->materialize();
  const bool is_plain = !value.is_neg() && !value.is_conj() && !value._is_zerotensor();
  if (is_plain && value.is_contiguous()) return value;
  return plain(value).contiguous();
}

void check_alike(const char* call, std::span<const at::Tensor> values, std::span<const int64_t> but_axes,
                 std::span<const int64_t> ids) {
  const auto id_of = [&](std::size_t i) { return ids.empty() ? static_cast<int64_t>(i) : ids[i]; };
  const at::Tensor& a = values.front();
  for (std::size_t r = 1; r < values.size(); ++r) {
    const at::Tensor& b = values[r];
    bool alike = a.scalar_type() == b.scalar_type() && a.dim() == b.dim();
    for (int64_t d = 0; alike && d < a.dim(); ++d) {
      alike = a.size(d) == b.size(d) || std::find(but_axes.begin(), but_axes.end(), d) != but_axes.end();
    }
    if (alike) continue;
    throw UsageError("LS-NOT-ALIKE",
                     fmt::format("{} was given {} for replica {} and {} for replica {}", call, shape_text(a), id_of(0),
                                 shape_text(b), id_of(r)),
                     but_axes.empty()
                         ? "give all replicas tensors of one shape and dtype"
                         : fmt::format("give tensors of one dtype that differ in size along dimension {} alone",
                                       fmt::join(but_axes, ", ")));
  }
}

int64_t checked_axis(const char* call, int64_t axis, int64_t dimensions) {
  if (axis >= -dimensions && axis < dimensions) return axis < 0 ? axis + dimensions : axis;
  throw UsageError("LS-AXIS",
                   fmt::format("{} was given axis {} of a tensor of {}", call, axis, counted(dimensions, "dimension")),
                   dimensions == 0 ? "give it a dimension: value.reshape({1})"
                                   : fmt::format("choose an axis from 0 to {}", dimensions - 1));
}

std::vector<int64_t> checked_axes(const char* call, std::span<const int64_t> axes, int64_t dimensions) {
  std::vector<int64_t> result;
  for (const int64_t axis : axes) {
    const int64_t one = checked_axis(call, axis, dimensions);
    if (std::find(result.begin(), result.end(), one) != result.end()) {
      throw UsageError("LS-AXIS",
                       fmt::format("{} was given axes [{}] of a tensor of {} dimensions, which name axis {} twice",
                                   call, fmt::join(axes, ", "), dimensions, one),
                       "name each axis once");
    }
    result.push_back(one);
  }
  return result;
}

std::string shape_text(const at::Tensor& value) {
  return fmt::format("{} [{}]", c10::toString(value.scalar_type()), fmt::join(value.sizes(), ", "));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor left = plain_and_contiguous(a);
  const at::Tensor right = plain_and_contiguous(b);
  return left.numel() == 0 || std::memcmp(host_bytes(left).data(), host_bytes(right).data(), left.nbytes()) == 0;
}

}  // namespace lockstep::internal::reduce
