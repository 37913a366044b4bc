#include "lockstep/core/tensors/host_bytes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

void throw_no_host_bytes(const at::Tensor& tensor) {
  throw InternalError(
      "LS-INTERNAL",
      fmt::format("the host was to use elements of a tensor of {} on {}, which are not in its memory or "
                  "of another dtype",
                  c10::toString(tensor.scalar_type()), tensor.device().str()),
      "please report it");
}

at::Tensor tensor_of_text(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::ranges::copy(std::as_bytes(std::span(text)), host_bytes_to_write(bytes).begin());
  return bytes;
}

}  // namespace lockstep::internal::core
