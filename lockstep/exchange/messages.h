// Memory for messages, and the call that exchanges them with all other workers.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline exchange {

/// Gives `memory` at least so many bytes. New memory is cleared, because the gaps of a row travel too. It takes the
/// place of too little: what was put into the old one may still be on its way.
inline void grow(at::Tensor& memory, int64_t bytes) {
  if (!memory.defined() || memory.numel() < bytes) memory = at::zeros({bytes}, at::kByte);
}

/// The first `bytes` bytes of such memory.
inline std::span<std::byte> bytes_of(const at::Tensor& memory, int64_t bytes) {
  if (bytes == 0) return {};
  return host_bytes_to_write(memory).first(static_cast<std::size_t>(bytes));
}

/// A call of all workers. With each other worker w: sends `to_of(w)`, and fills `from_of(w)`; either may be empty.
/// Returns how many bytes were sent. Throws what the World throws.
template <class To, class From>
int64_t exchange_with_others(Rounds& rounds, const To& to_of, const From& from_of) {
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(rounds.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  int64_t sent = 0;
  for (int64_t w = 0; w < rounds.num_workers(); ++w) {
    if (w == rounds.worker_index()) continue;
    const auto at = static_cast<std::size_t>(w);
    to[at] = to_of(w);
    from[at] = from_of(w);
    sent += static_cast<int64_t>(to[at].size());
  }
  rounds.exchange(to, from);
  return sent;
}

}  // namespace lockstep::internal::exchange
