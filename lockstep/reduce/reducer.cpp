#include "lockstep/reduce/reducer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep {


std::string TreeReducer::describe() const { return "in tree order"; }

at::Tensor TreeReducer::reduce(Reduction reduction, std::span<const at::Tensor> values) const {
  return internal::reduce_tensors(reduction, values);
}

at::Tensor internal::reduce_by(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values) {
  const at::ScalarType type = result_type_of(reduction, values.front());  // refuses what has no sum, for all reducers
  at::Tensor result = reducer.reduce(reduction, values);
  if (result.defined() && result.layout() == at::kStrided && result.scalar_type() == type &&
      result.sizes() == values.front().sizes() && result.device() == values.front().device()) {
    return result.detach();
  }
  const std::string found = !result.defined() ? "nothing"
                                              : fmt::format("{} [{}] on {}", c10::toString(result.scalar_type()),
                                                            fmt::join(result.sizes(), ", "), result.device().str());
  throw UsageError(
      fmt::format("the reducer that adds {} made {} from {} tensors of {} [{}] by {}", reducer.describe(), found,
                  values.size(), c10::toString(values.front().scalar_type()), fmt::join(values.front().sizes(), ", "),
                  name_of(reduction)),
      fmt::format("let it return a dense tensor of {} and that shape, on their device", c10::toString(type)));
}

}  // namespace lockstep
