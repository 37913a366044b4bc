#include "lockstep/reduce/reduce_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <vector>

#include "lockstep/reduce/addition_order.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

at::ScalarType result_type_of(Reduction reduction, const at::Tensor& value) {
  const at::ScalarType type = value.scalar_type();
  const bool adds = reduction == Reduction::kSum || reduction == Reduction::kMean;
  if (type == at::kBool && adds) {
    throw UsageError(fmt::format("a {} of bool tensors was asked for", name_of(reduction)),
                     "convert them to an integer or floating-point dtype, or use kMin (all) or kMax (any)");
  }
  if (at::isComplexType(type) && !adds) {
    throw UsageError(fmt::format("a {} of complex tensors was asked for", name_of(reduction)),
                     "reduce their absolute values");
  }
  if (reduction == Reduction::kMean && at::isIntegralType(type, /*includeBool=*/false)) return at::kDouble;
  return type;
}

at::ScalarType accumulation_type_of(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor reduce_tensors(Reduction reduction, std::span<const at::Tensor> values) {
  const at::NoGradGuard no_grad;
  const at::ScalarType result_type = result_type_of(reduction, values.front());
  if (at::isComplexType(result_type)) {
    // LibTorch's complex addition multiplies by 1 first, and loses the sign of zeros in it.
    std::vector<at::Tensor> parts;
    for (const at::Tensor& value : values) parts.push_back(at::view_as_real(value.detach().resolve_conj()));
    return at::view_as_complex(reduce_tensors(reduction, parts));
  }
  const at::ScalarType sum_type = accumulation_type_of(values.front().scalar_type());
  const auto leaf = [&](int64_t i) { return values[i].detach().to(sum_type); };
  at::Tensor result =
      fold_in_tree_order(0, static_cast<int64_t>(values.size()), leaf, [&](const at::Tensor& a, const at::Tensor& b) {
        if (reduction == Reduction::kMin) return at::minimum(a, b);
        if (reduction == Reduction::kMax) return at::maximum(a, b);
        return at::add(a, b);
      });
  if (reduction == Reduction::kMean) {
    result =
        result.to(at::isIntegralType(sum_type, false) ? at::kDouble : sum_type) / static_cast<double>(values.size());
  }
  result = result.to(result_type);
  return values.size() == 1 && result.is_alias_of(values.front()) ? result.clone() : result;
}

}  // namespace lockstep::internal
