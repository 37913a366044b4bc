// Which tensors may be reduced, gathered and broadcast, and the form in which their memory is read.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::internal::inline reduce {

/// Throws a UsageError where the elements of `value` cannot be read in the host's memory: where it is undefined,
/// sparse, nested, quantized, or on another device. The message names `call` and, where it is given, the replica that
/// `value` belongs to.
void check_operand(const char* call, const at::Tensor& value, std::optional<int64_t> replica = {});

/// `value` without gradient and without LibTorch's negative and conjugate bits, which operators apply when they read.
/// It shares the memory of `value` where neither bit is set, and it keeps the strides.
at::Tensor plain(const at::Tensor& value);

/// The same in one dense range of memory, in the order of the elements. A `value` that lies so already is returned
/// itself: this costs nothing, and its gradient stays.
at::Tensor plain_and_contiguous(const at::Tensor& value);

/// Throws the UsageError LS-NOT-ALIKE, which names `call`, unless all values have one dtype and one shape, except for
/// their sizes along `but_axes` (counted from 0). There is at least one value. values[i] is that of replica ids[i], or
/// of replica i where there are no `ids`.
void check_alike(const char* call, std::span<const at::Tensor> values, std::span<const int64_t> but_axes = {},
                 std::span<const int64_t> ids = {});

/// `axis` counted from 0; a negative axis counts from the end. Throws the UsageError LS-AXIS, which names `call`, where
/// a tensor of so many dimensions has no such axis.
int64_t checked_axis(const char* call, int64_t axis, int64_t dimensions);
/// The same for several axes. An axis that is named twice is an LS-AXIS too.
std::vector<int64_t> checked_axes(const char* call, std::span<const int64_t> axes, int64_t dimensions);

/// "Float [2, 3]"
std::string shape_text(const at::Tensor& value);

/// Whether two tensors have the same dtype, shape and bits, NaN included.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::internal::reduce
