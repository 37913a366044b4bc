#include "lockstep/variable/values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

namespace {

/// The real part where `type` is real, the value itself where not: LibTorch's conversion would warn of an imaginary
/// part that `misfit` has looked at.
at::Tensor real_part_for(at::ScalarType type, const at::Tensor& value) {
  return value.is_complex() && !at::isComplexType(type) ? at::real(value) : value;
}

/// The whole numbers that an integer dtype holds: from `low` to below `end`, both exact as double.
struct Range {
  double low;
  double end;
};

Range range_of(at::ScalarType type) {
  if (type == at::kBool) return {0, 2};
  const auto bits = static_cast<double>(8 * c10::elementSize(type));
  const bool has_sign = at::isSignedType(type);
  return {has_sign ? -std::exp2(bits - 1) : 0, std::exp2(has_sign ? bits - 1 : bits)};
}

/// Whether integers of one dtype are integers of another without changing; both bounds are exact in int64.
bool integers_fit(const at::Tensor& given, at::ScalarType type) {
  const Range range = range_of(type);
  const Range source = range_of(given.scalar_type());
  if (range.low <= source.low && source.end <= range.end) return true;
  const at::Tensor wide = given.to(at::kLong);
  const auto low = wide.min().item<int64_t>();
  const auto high = wide.max().item<int64_t>();
  // Numbers from 2^63 on, of an unsigned type of 64 bits, are negative here.
  if (source.low == 0 && low < 0) return false;
  if (low < 0 && static_cast<double>(low) < range.low) return false;
  // A bound of 2^63 or more is above every int64; smaller ones convert exactly.
  return range.end >= std::exp2(63) || high < static_cast<int64_t>(range.end);
}

bool numbers_fit_integers(const at::Tensor& given, at::ScalarType type) {
  if (at::isIntegralType(given.scalar_type(), /*includeBool=*/true)) return integers_fit(given, type);
  const Range range = range_of(type);
  const at::Tensor wide = given.to(at::kDouble);
  return ((wide == wide.trunc()) & (wide >= range.low) & (wide < range.end)).all().item<bool>();
}

/// The finite numbers of an 8-bit floating-point dtype that has no infinity, or nothing for another dtype. LibTorch
/// sets what is out of this range to the largest number (float8_e4m3fn), to NaN, or to its absolute value
/// (float8_e8m0fnu).
std::optional<std::pair<double, double>> range_without_infinity(at::ScalarType type) {
  if (c10::elementSize(type) > 1) return std::nullopt;
  const at::Tensor all = at::arange(256, at::kByte).view(type).to(at::kDouble);
  if (at::isinf(all).any().item<bool>()) return std::nullopt;
  const at::Tensor finite = all.masked_select(at::isfinite(all));
  return std::pair(finite.min().item<double>(), finite.max().item<double>());
}

/// A finite number must not become infinite, and none must leave the range of a dtype without infinity. Any other loss
/// is one of precision only.
bool numbers_fit_floats(const at::Tensor& given, at::ScalarType type) {
  if (type == at::kDouble || type == at::kComplexDouble) return true;
  if (at::isIntegralType(given.scalar_type(), /*includeBool=*/true) && type != at::kHalf &&
      c10::elementSize(type) > 1) {
    return true;  // 2^64 is far below the largest number
  }
  if (const auto range = range_without_infinity(type)) {
    const at::Tensor numbers = given.to(at::kDouble);
    return (at::isnan(numbers) | ((numbers >= range->first) & (numbers <= range->second))).all().item<bool>();
  }
  const at::ScalarType wide = at::isComplexType(type) ? at::kComplexDouble : at::kDouble;
  return !(at::isfinite(given.to(wide)) & at::isfinite(given.to(type).to(wide)).logical_not()).any().item<bool>();
}

bool values_fit(const at::Tensor& value, at::ScalarType type) {
  if (value.scalar_type() == type || value.numel() == 0) return true;
  const at::NoGradGuard no_grad;
  const at::Tensor given = real_part_for(type, value);
  if (!given.is_same(value) && at::imag(value).count_nonzero().item<int64_t>() != 0) return false;
  return at::isIntegralType(type, /*includeBool=*/true) ? numbers_fit_integers(given, type)
                                                        : numbers_fit_floats(given, type);
}

}  // namespace

Misfit unsuited(const at::Tensor& tensor) {
  if (!tensor.defined()) return {"LS-NOT-DENSE", "is undefined"};
  if (tensor.is_nested()) return {"LS-NOT-DENSE", "is nested"};
  if (tensor.is_quantized()) return {"LS-DTYPE", fmt::format("is {}", c10::toString(tensor.scalar_type()))};
  if (tensor.layout() != at::kStrided) {
    return {"LS-NOT-DENSE", tensor.is_sparse() ? "is sparse" : "has a layout other than strided"};
  }
  if (!tensor.device().is_cpu()) return {"LS-NOT-HOST", fmt::format("is on device {}", tensor.device().str())};
  return {};
}

Misfit misfit(const VariableState& variable, const at::Tensor& value) {
  Misfit found = unsuited(value);
  // Values are copied here from a GPU; a meta tensor has none.
  if (!found.fits() && !(value.defined() && value.layout() == at::kStrided && !value.is_quantized() &&
                         !value.is_nested() && value.device().is_cuda())) {
    return found;
  }
  const at::Tensor& like = variable.like();
  // An on-read variable takes the shape that it has now. One that was made empty grows in training, so that a saved
  // state of it may have any sizes.
  const bool grows = !variable.on_write() && like.numel() == 0 && value.dim() == like.dim();
  if (value.sizes() != like.sizes() && !grows &&
      (variable.on_write() || value.sizes() != variable.component(0).sizes())) {
    return {"LS-SHAPE", fmt::format("has shape [{}] instead of [{}]", fmt::join(value.sizes(), ", "),
                                    fmt::join(like.sizes(), ", "))};
  }
  if (values_fit(value, like.scalar_type())) return {};
  return {"LS-DTYPE", fmt::format("has {} values that {} cannot hold", c10::toString(value.scalar_type()),
                                  c10::toString(like.scalar_type()))};
}

at::Tensor value_for(const VariableState& variable, const at::Tensor& value, const char* call) {
  const at::Tensor& like = variable.like();
  const Misfit found = misfit(variable, value);
  if (found.fits()) {
    const at::Tensor given = plain(real_part_for(like.scalar_type(), value));
    if (given.scalar_type() == like.scalar_type()) return given.to(like.device());
    const ComputeSettingsGuard settings(variable.group()->plan().compute);  // a conversion may meet denormal numbers
    return given.to(like.device(), like.scalar_type());
  }
  throw UsageError(found.code,
                   fmt::format("{} of variable '{}' was given a tensor that {}", call, variable.name(), found.why),
                   fmt::format("give a dense tensor of {} [{}] in the host's memory", c10::toString(like.scalar_type()),
                               fmt::join(like.sizes(), ", ")));
}

bool is_trainable_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
    case at::kComplexDouble: return true;
    default: return false;
  }
}

at::Tensor as_numbers(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

void fill_with_additive_identity(at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = values.scalar_type();
  if (at::isComplexType(type)) {
    values.fill_(c10::complex<double>(-0.0, -0.0));
  } else if (at::isFloatingType(type)) {
    values.fill_(-0.0);
  } else {
    values.zero_();
  }
}

bool elements_overlap(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride and size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reach = 0;  // of the dimensions so far, whose strides are smaller
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace lockstep::internal::variable
