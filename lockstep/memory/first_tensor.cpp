#include "lockstep/memory/first_tensor.h"

#include <c10/core/CPUAllocator.h>

#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline memory {

namespace {

/// An operator that computes needs memory for its result first, and thereby comes through here.
class FirstTensorAllocator final : public HostAllocator {
 public:
  c10::DataPtr new_block(std::size_t bytes) const override {
    warm_up_math();
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
};

/// Never destroyed: tensors may be resized while the process ends.
FirstTensorAllocator& allocator_of_first_tensors() {
  static FirstTensorAllocator& instance = *new FirstTensorAllocator;
  return instance;
}

// While the library is loaded nothing is computed: see warm_up_math(). With LibTorch's lowest priority, so that the
// program's own allocator takes over.
[[maybe_unused]] const bool installed = [] {
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return false;
  c10::SetCPUAllocator(&allocator_of_first_tensors(), 0);
  return true;
}();

}  // namespace

const c10::Allocator* first_tensor_allocator() { return &allocator_of_first_tensors(); }

}  // namespace lockstep::internal::memory
