#include "lockstep/checkpoint/snapshot.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/replica/pool/cores.h"

namespace lockstep::internal::inline checkpoint {

void Snapshot::take(WritePlan& plan, PlannedBytes& mine) {
  constexpr std::size_t kLine = 64;
  std::vector<std::size_t> copied;   // places in mine.bytes
  std::vector<std::size_t> offsets;  // in the memory, by `copied`
  std::size_t bytes = 0;
  for (std::size_t k = 0; k < mine.bytes.size(); ++k) {
    if (!plan.tensors[plan.pieces[mine.share.begin + k].tensor].is_borrowed || mine.bytes[k].empty()) continue;
    copied.push_back(k);
    offsets.push_back(bytes);
    bytes += (mine.bytes[k].size() + kLine - 1) / kLine * kLine;
  }
  const std::size_t kept = memory_.defined() ? memory_.nbytes() : 0;
  if (kept < bytes || kept / 2 > bytes) {
    memory_ = at::Tensor();  // first, so that there are never two
    if (bytes > 0) memory_ = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
  auto* const memory = bytes == 0 ? nullptr : host_bytes_to_write(memory_).data();
  const bool past_caches = bytes > kStreamedBytes;
  ReadPool pool(static_cast<int64_t>(cores_of_this_process().size()));
  pool.run(static_cast<int64_t>(copied.size()), [&](int64_t i) {
    std::span<const std::byte>& piece = mine.bytes[copied[static_cast<std::size_t>(i)]];
    std::byte* const copy = memory + offsets[static_cast<std::size_t>(i)];
    if (past_caches) {
      stream_copy(copy, piece.data(), piece.size());
      end_stream_copies();
    } else {
      std::memcpy(copy, piece.data(), piece.size());
    }
    piece = {copy, piece.size()};
  });
  for (PlannedTensor& one : plan.tensors) {
    if (one.is_borrowed) one.value = at::Tensor();
  }
}

}  // namespace lockstep::internal::checkpoint
