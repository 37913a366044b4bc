#include "lockstep/reduce/reduce_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline reduce {

namespace {

bool is_sum(Reduction reduction) { return reduction == Reduction::kSum || reduction == Reduction::kMean; }

/// The integers that LibTorch adds.
bool is_integer(at::ScalarType type) {
  return type == at::kByte || type == at::kChar || type == at::kShort || type == at::kInt || type == at::kLong;
}

bool is_floating(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

bool is_complex(at::ScalarType type) {
  return type == at::kComplexFloat || type == at::kComplexDouble || type == at::kComplexHalf;
}

/// Splits each v = high * 2^32 + low, 0 <= low < 2^32, into a last dimension of two, [high, low]. Sums of 2^31 of them
/// fit into int64.
at::Tensor halves_of(const at::Tensor& integers) {
  const at::Tensor wide = integers.to(at::kLong);
  return at::stack({wide.bitwise_right_shift(32), wide.bitwise_and(int64_t{0xffffffff})}, -1);
}

/// Sums of halves as one number. Only the last addition rounds.
at::Tensor number_of(const at::Tensor& halves) {
  const at::Tensor low = halves.select(-1, 1);
  const at::Tensor high = halves.select(-1, 0) + low.bitwise_right_shift(32);
  return high.to(at::kDouble) * 0x1p32 + low.bitwise_and(int64_t{0xffffffff}).to(at::kDouble);
}

at::Tensor join(Reduction reduction, const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined()) return b;
  if (!b.defined()) return a;
  if (reduction == Reduction::kMin) return at::minimum(a, b);
  if (reduction == Reduction::kMax) return at::maximum(a, b);
  return at::add(a, b);
}

}  // namespace

at::ScalarType result_type_of(Reduction reduction, const at::Tensor& value) {
  const at::ScalarType type = value.scalar_type();
  const auto refuse = [&](const char* remedy) {
    throw UsageError("LS-DTYPE",
                     fmt::format("a {} of {} tensors was asked for", name_of(reduction), c10::toString(type)), remedy);
  };
  if (type == at::kBool && is_sum(reduction)) {
    refuse("convert them to an integer or floating-point dtype, or use kMin (all) or kMax (any)");
  }
  if (at::isComplexType(type) && !is_sum(reduction)) refuse("reduce their absolute values");
  if (is_integer(type)) return reduction == Reduction::kMean ? at::kDouble : type;
  if (!is_floating(type) && !is_complex(type) && type != at::kBool) {
    refuse("convert them first, value.to(torch::kFloat) or value.to(torch::kLong), and the result back");
  }
  return type;
}

at::ScalarType accumulation_type_of(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor summand_of(Reduction reduction, const at::Tensor& value) {
  at::Tensor read = plain(value);
  // LibTorch's complex addition first multiplies by 1, and so loses the sign of zeros.
  if (read.is_complex()) read = at::view_as_real(read);
  if (reduction == Reduction::kMean && is_integer(read.scalar_type())) return halves_of(read);
  return read.to(accumulation_type_of(read.scalar_type()));
}

at::Tensor fold_summands(Reduction reduction, std::span<const at::Tensor> summands) {
  const at::NoGradGuard no_grad;
  return fold_in_tree_order(
      0, static_cast<int64_t>(summands.size()), [&](int64_t i) { return summands[i]; },
      [&](const at::Tensor& a, const at::Tensor& b) { return join(reduction, a, b); });
}

at::Tensor result_of(Reduction reduction, const at::Tensor& total, int64_t count, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  at::Tensor result = total;
  if (reduction == Reduction::kMean) {
    result = (is_integer(type) ? number_of(total) : total) / static_cast<double>(count);
    if (is_integer(type)) return result;
  }
  result = result.to(c10::toRealValueType(type));
  return at::isComplexType(type) ? at::view_as_complex(result.contiguous()) : result;
}

at::Tensor reduce_tensors(Reduction reduction, std::span<const at::Tensor> values) {
  const at::NoGradGuard no_grad;
  result_type_of(reduction, values.front());  // throws for a dtype without this reduction
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor total = fold_in_tree_order(
      0, count, [&](int64_t i) { return summand_of(reduction, values[i]); },
      [&](const at::Tensor& a, const at::Tensor& b) { return join(reduction, a, b); });
  const at::Tensor result = result_of(reduction, total, count, values.front().scalar_type());
  return count == 1 && result.is_alias_of(values.front()) ? result.clone() : result;
}

}  // namespace lockstep::internal::reduce
