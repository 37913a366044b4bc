// Which tensors may be reduced, gathered and broadcast, and the form in which their memory is read.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::internal {

/// Throws the UsageError of a `call` that was given a tensor whose elements cannot be read in the host's memory:
/// undefined, sparse, nested, quantized, or on another device. `replica` is whose tensor it is, where the caller knows.
void check_operand(const char* call, const at::Tensor& value, std::optional<int64_t> replica = {});

/// `value` without gradient and without the negative and conjugate bits, which operators apply as they read. It is the
/// same memory where neither bit is set. Strides stay.
at::Tensor plain(const at::Tensor& value);

/// The same in one dense stretch of memory, in the order of the elements. Costs nothing where it is so already.
at::Tensor plain_and_contiguous(const at::Tensor& value);

/// Throws the LS-NOT-ALIKE of a `call` unless all have one dtype and one shape, except for their sizes along `but_axes`
/// (from 0). Index i is replica i.
void check_alike(const char* call, std::span<const at::Tensor> values, std::span<const int64_t> but_axes = {});

/// `axis` counted from 0. Throws the LS-AXIS of a `call` where tensors of so many dimensions have none such.
int64_t checked_axis(const char* call, int64_t axis, int64_t dimensions);
/// The same of several, each of which must be another one.
std::vector<int64_t> checked_axes(const char* call, std::span<const int64_t> axes, int64_t dimensions);

/// "Float [2, 3]"
std::string shape_text(const at::Tensor& value);

/// Whether two tensors have the same dtype, shape and bits, NaN included.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::internal
