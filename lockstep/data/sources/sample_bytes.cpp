#include "lockstep/data/sources/sample_bytes.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "lockstep/data/formats/records/tensor_bytes.h"

namespace lockstep::internal::inline data {

namespace {

void add(std::string& bytes, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
  append(bytes, {.name = name,
                 .dtype = static_cast<uint64_t>(plain.scalar_type()),
                 .sizes = plain.sizes().vec(),
                 .elements = {static_cast<const char*>(plain.data_ptr()), plain.nbytes()}});
}

/// Of the dtypes of a sample: quantized elements mean nothing without their scale.
uint64_t element_size(uint64_t dtype) {
  if (dtype >= static_cast<uint64_t>(at::ScalarType::NumOptions)) return 0;
  const auto type = static_cast<at::ScalarType>(dtype);
  return type == at::ScalarType::Undefined || c10::isQIntType(type) ? 0 : c10::elementSize(type);
}

at::Tensor tensor_of(const TensorBytes& from) {
  at::Tensor tensor = at::empty(from.sizes, static_cast<at::ScalarType>(from.dtype));
  if (!from.elements.empty()) std::memcpy(tensor.data_ptr(), from.elements.data(), from.elements.size());
  return tensor;
}

}  // namespace

std::string bytes_of(const Batch& sample) {
  std::string bytes;
  add(bytes, "i", sample.input);
  add(bytes, "t", sample.target);
  for (const auto& [name, tensor] : sample.more) add(bytes, "m" + name, tensor);
  return bytes;
}

std::optional<Batch> sample_of(std::string_view bytes) {
  const auto tensors = tensors_in(bytes, element_size);
  if (!tensors) return std::nullopt;
  Batch sample;
  for (const TensorBytes& one : *tensors) {
    if (one.name == "i") {
      sample.input = tensor_of(one);
    } else if (one.name == "t") {
      sample.target = tensor_of(one);
    } else if (one.name.starts_with('m')) {
      sample.more[std::string(one.name.substr(1))] = tensor_of(one);
    } else {
      return std::nullopt;
    }
  }
  if (!sample.input.defined()) return std::nullopt;
  return sample;
}

}  // namespace lockstep::internal::data
