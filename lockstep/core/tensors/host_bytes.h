// The one way by which the host's own code reads and writes the elements of tensors: their memory as a span.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline core {

/// Throws the InternalError of a tensor whose memory the host cannot read, or whose elements are not what they are
/// taken for.
[[noreturn]] void throw_no_host_bytes(const at::Tensor& tensor);

inline std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

/// The bytes of a dense tensor, in the order of its memory. They hold as long as the tensor's memory does. Throws an
/// InternalError where that is not the host's: who calls this for tensors of a device has forgotten them.
inline std::span<const std::byte> host_bytes(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) throw_no_host_bytes(tensor);
  return {static_cast<const std::byte*>(address_of(tensor)), count_of(tensor) * tensor.element_size()};
}
/// The same for writing. It counts as no write for LibTorch: version counters stay.
inline std::span<std::byte> host_bytes_to_write(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) throw_no_host_bytes(tensor);
  return {static_cast<std::byte*>(tensor.data_ptr()), count_of(tensor) * tensor.element_size()};
}

/// The elements of such a tensor, whose dtype is that of T.
template <class T>
std::span<const T> host_numbers(const at::Tensor& tensor) {
  if (tensor.scalar_type() != c10::CppTypeToScalarType<T>::value) throw_no_host_bytes(tensor);
  return {reinterpret_cast<const T*>(host_bytes(tensor).data()), count_of(tensor)};
}
template <class T>
std::span<T> host_numbers_to_write(const at::Tensor& tensor) {
  if (tensor.scalar_type() != c10::CppTypeToScalarType<T>::value) throw_no_host_bytes(tensor);
  return {reinterpret_cast<T*>(host_bytes_to_write(tensor).data()), count_of(tensor)};
}

/// The same bytes as a text.
inline std::string_view host_text(const at::Tensor& tensor) {
  const std::span<const std::byte> bytes = host_bytes(tensor);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
/// A new tensor of dtype uint8 with the bytes of a text.
at::Tensor tensor_of_text(std::string_view text);

}  // namespace lockstep::internal::core
