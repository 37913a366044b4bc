#include "lockstep/reduce/across_replicas.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lockstep/core/error.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep::internal::inline reduce {

namespace {

/// One replica's value, reduced over `axes`. For sums and means the result is a summand, which may have one more
/// dimension at the end.
at::Tensor taken_together(Reduction reduction, const at::Tensor& value, const std::vector<int64_t>& axes) {
  if (reduction == Reduction::kMin) return at::amin(plain(value), axes);
  if (reduction == Reduction::kMax) return at::amax(plain(value), axes);
  const at::Tensor summand = summand_of(reduction, value);
  return at::sum(summand, axes, /*keepdim=*/false, summand.scalar_type());
}

/// The same memory as integers of the same size, which LibTorch copies bit for bit whatever the dtype.
at::Tensor as_bytes(const at::Tensor& value) {
  const at::Tensor read = plain(value);
  switch (read.element_size()) {
    case 1: return read.view(at::kByte);
    case 2: return read.view(at::kShort);
    case 4: return read.view(at::kInt);
    case 8: return read.view(at::kLong);
    default: return read;  // complex numbers of float64
  }
}

/// Whether no element changes a sum: every element has the bits of negative zero, or of zero for integers.
bool adds_nothing(const at::Tensor& value) {
  if (at::isComplexType(value.scalar_type())) return adds_nothing(at::view_as_real(plain(value)));
  return same_bits(value, at::isFloatingType(value.scalar_type()) ? at::full_like(value, -0.0) : at::zeros_like(value));
}

}  // namespace

at::Tensor reduced(const char* call, const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values) {
  check_alike(call, values);
  return reduce_by(reducer, reduction, values);
}

at::Tensor reduced_over(const char* call, const Reducer& reducer, Reduction reduction,
                        std::span<const at::Tensor> values, std::span<const int64_t> axes) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = values.front().scalar_type();
  result_type_of(reduction, values.front());  // throws for a dtype without this reduction
  const std::vector<int64_t> dimensions = checked_axes(call, axes, values.front().dim());
  check_alike(call, values, dimensions);
  const bool extreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
  std::vector<at::Tensor> parts;
  int64_t elements = 0;
  for (const at::Tensor& value : values) {
    int64_t here = 1;
    for (const int64_t axis : dimensions) here *= value.size(axis);
    elements += here;
    if (extreme && here == 0) continue;  // an empty part has no extreme
    parts.push_back(taken_together(reduction, value, dimensions));
  }
  if (elements == 0 && reduction != Reduction::kSum) {
    throw UsageError("LS-NO-ELEMENTS",
                     fmt::format("{} was asked for the {} of values without elements", call, name_of(reduction)),
                     "leave out steps in which no replica has a sample");
  }
  if (extreme) return reduce_by(reducer, reduction, parts);
  return result_of(reduction, reduce_by(reducer, Reduction::kSum, parts), elements, type);
}

at::Tensor joined(const char* call, std::span<const at::Tensor> values, int64_t axis) {
  const at::NoGradGuard no_grad;
  const int64_t dimension = checked_axis(call, axis, values.front().dim());
  check_alike(call, values, {&dimension, 1});
  std::vector<int64_t> sizes = values.front().sizes().vec();
  sizes[static_cast<std::size_t>(dimension)] = 0;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& value : values) {
    sizes[static_cast<std::size_t>(dimension)] += value.size(dimension);
    parts.push_back(as_bytes(value));
  }
  const at::Tensor result = at::empty(sizes, values.front().options());
  at::Tensor room = as_bytes(result);
  at::cat_out(room, parts, dimension);
  return result;
}

at::Tensor copied(const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor read = plain(value);
  const at::Tensor result = at::empty_like(read);
  as_bytes(result).copy_(as_bytes(read));
  return result;
}

at::Tensor reading_of(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> components) {
  const at::NoGradGuard no_grad;
  if (reduction == Reduction::kSum) {
    // After an assignment one component has the value and the others add nothing. Then the value is read back bit for
    // bit, also where adding would flush its denormal numbers.
    std::vector<at::Tensor> adding;
    std::copy_if(components.begin(), components.end(), std::back_inserter(adding),
                 [](const at::Tensor& one) { return !adds_nothing(one); });
    return adding.size() == 1 ? copied(adding.front()) : reduce_by(reducer, reduction, components);
  }
  const at::Tensor& first = components.front();
  if (std::all_of(components.begin() + 1, components.end(),
                  [&](const at::Tensor& other) { return same_bits(first, other); })) {
    return first.detach().clone();
  }
  const at::ScalarType type = first.is_complex() ? at::kComplexDouble : at::kDouble;
  std::vector<at::Tensor> wide;
  for (const at::Tensor& one : components) wide.push_back(one.detach().to(type));
  return reduce_by(reducer, reduction, wide).to(first.scalar_type());
}

}  // namespace lockstep::internal::reduce
