// Finds values that lie in memory which a call writes: such a value is copied before the first write.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::internal::inline variable {

class VariableState;

/// The addresses from a tensor's first byte to the end of its last element. Two tensors over one memory need not have
/// one storage (torch::from_blob), but they have such addresses in common.
struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool empty() const { return begin == end; }
  std::size_t bytes() const { return end - begin; }
  bool overlaps(const AddressRange& other) const { return begin < other.end && other.begin < end; }
};

/// Empty where the tensor has no elements, or none in the host's memory.
AddressRange address_range_of(const at::Tensor& tensor);
/// The same of all memory of the tensor's storage that LibTorch knows; empty where the tensor has no elements.
AddressRange address_range_of_storage(const at::Tensor& tensor);

/// The memory that a call of several writes has written when it comes to one of them. The call passes all values
/// through copied_if_inside() before its first write, so that no value is read after it was overwritten. Values that
/// lie elsewhere are not copied. For n tensors all calls together take time in proportion to n log n.
class WrittenMemory {
 public:
  WrittenMemory() = default;
  /// All memory that a write of the variable may change.
  explicit WrittenMemory(const VariableState& variable) { add(variable); }

  void add(const at::Tensor& tensor);
  void add(const VariableState& variable);
  bool overlaps(const at::Tensor& tensor) const;
  /// `value` itself, or a copy where it lies in this memory.
  at::Tensor copied_if_inside(const at::Tensor& value) const { return overlaps(value) ? value.clone() : value; }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ranges_;  // begin and end, which do not touch each other
};

/// Copies each of the `values` that lies in a component which is written before it is read; values[r] is for local
/// replica r's component of the on-read `variable`. The caller then writes the components in order.
void copy_overwritten(std::vector<at::Tensor>& values, const VariableState& variable);

}  // namespace lockstep::internal::variable
