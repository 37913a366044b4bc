#include "lockstep/reduce/reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep {

bool Reducer::in_tree_order() const { return false; }

std::string TreeReducer::describe() const { return "in tree order"; }

at::Tensor TreeReducer::reduce(Reduction reduction, std::span<const at::Tensor> values) const {
  return internal::reduce_tensors(reduction, values);
}

bool TreeReducer::in_tree_order() const { return true; }

namespace internal::inline reduce {

namespace {

/// The values that a user's reducer is given: plain ones (operands.h), and int64 for means of integers, so that
/// narrower integers do not wrap before the division.
std::vector<at::Tensor> given_to_reducer(Reduction reduction, std::span<const at::Tensor> values) {
  const bool widen = reduction == Reduction::kMean && at::isIntegralType(values.front().scalar_type(), false);
  std::vector<at::Tensor> given;
  for (const at::Tensor& value : values) given.push_back(widen ? plain(value).to(at::kLong) : plain(value));
  return given;
}

}  // namespace

at::Tensor reduce_by(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values) {
  if (reducer.in_tree_order()) return reduce_tensors(reduction, values);
  const at::NoGradGuard no_grad;
  const at::Tensor& like = values.front();
  const at::ScalarType type = result_type_of(reduction, like);  // throws for a dtype without this reduction
  const at::Tensor result = reducer.reduce(reduction, given_to_reducer(reduction, values));
  if (result.defined() && result.layout() == at::kStrided && result.scalar_type() == type &&
      result.sizes() == like.sizes() && result.device() == like.device()) {
    // A reducer may have returned a value as it is; whoever writes the result must not write that value.
    const bool is_given = std::any_of(values.begin(), values.end(), [&](const at::Tensor& value) {
      return value.is_alias_of(result);  // also where a view of it was given
    });
    return is_given ? plain(result).clone() : plain(result);
  }
  const std::string found =
      !result.defined() ? "nothing" : fmt::format("{} on {}", shape_text(result), result.device().str());
  throw UsageError(
      "LS-REDUCER",
      fmt::format("the reducer '{}' returned {} for the {} of {} tensors of {}", reducer.describe(), found,
                  name_of(reduction), values.size(), shape_text(like)),
      fmt::format("let it return a dense tensor of {} and that shape, on their device", c10::toString(type)));
}

}  // namespace internal::reduce

}  // namespace lockstep
