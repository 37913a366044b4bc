#include "lockstep/optim/host_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/checksum.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/optim/gradient_table.h"
#include "lockstep/optim/optimizer_digest.h"
#include "lockstep/reduce/stream_copy.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

namespace {

/// Each variable, sum and worker's factors begin at a multiple of it, so that no line of a cache belongs to two.
constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

HostGradients::HostGradients(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group)
    : variables_(std::move(variables)),
      group_(group),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      partial_sums_(group),
      factors_(variables_, group) {}

void HostGradients::begin_step(const std::vector<GradientsOnWorkers>& all, const FusedUpdate& update, bool whole) {
  std::vector<char> factored(variables_.size());
  std::vector<char> summed(variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (all[i].gradients == Gradients::kSome) (all[i].factors.empty() ? summed : factored)[i] = 1;
  }
  factors_.begin_step(all, factored);
  if (summed != summed_ || whole != whole_) lay_out(std::move(summed), update, whole);
  make_room();
  for (int64_t w = 0; w < num_workers_; ++w) {
    const int64_t elements = factors_.elements_of(w);
    if (w != worker_ && elements > 0) factors_.unpack(w, at::from_blob(factors_of(w), {elements}, at::kFloat));
  }
}

void HostGradients::lay_out(std::vector<char> summed, const FusedUpdate& update, bool whole) {
  summed_.clear();  // where memory is short, the next step begins again
  places_.assign(variables_.size(), 0);
  pieces_.clear();
  sum_bytes_ = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!summed[i]) continue;
    places_[i] = sum_bytes_;
    const at::Tensor& like = variables_[i]->like();
    const int64_t elements = kBlockBytes / static_cast<int64_t>(like.element_size());
    for (int64_t block = 0; block * elements < like.numel(); ++block) {
      const int64_t offset = block * elements;
      if (whole || !update.has_block(i, block))
        pieces_.push_back({i, offset, std::min(elements, like.numel() - offset)});
    }
    sum_bytes_ += aligned(variables_[i]->bytes());
  }
  streams_ = static_cast<std::size_t>(sum_bytes_) > kStreamedBytes;
  whole_ = whole;
  summed_ = std::move(summed);
}

void HostGradients::make_room() {
  int64_t bytes = 0;
  for (int64_t w = 0; w < num_workers_; ++w) {
    bytes += sum_bytes_ * static_cast<int64_t>(partial_sums_.subtrees(w).size());
    bytes += aligned(factors_.elements_of(w) * static_cast<int64_t>(sizeof(float)));
  }
  if (bytes <= room_) return;
  // All workers come here in the same step, and where one of them gets no memory, none has it.
  room_ = 0;
  memory_.reset();
  std::shared_ptr<std::byte> memory;
  // A worker that had made another call of the memory would get another piece of it.
  HostMemory& of_host = *group_.rounds().host_memory();
  const uint64_t place = OptimizerDigest().with(of_host.calls()).with(static_cast<uint64_t>(bytes)).value();
  agree_on_call(group_.rounds(), {.call = "memory of gradients", .signature = place, .step = group_.step()},
                [&](Proposal&) { memory = of_host.allocate(static_cast<std::size_t>(bytes)); });
  memory_ = std::move(memory);
  room_ = bytes;
}

std::byte* HostGradients::sums_of(int64_t worker, std::size_t subtree) const {
  auto before = static_cast<int64_t>(subtree);
  for (int64_t w = 0; w < worker; ++w) before += static_cast<int64_t>(partial_sums_.subtrees(w).size());
  return memory_.get() + before * sum_bytes_;
}

float* HostGradients::factors_of(int64_t worker) const {
  std::byte* at = sums_of(num_workers_, 0);
  for (int64_t w = 0; w < worker; ++w) at += aligned(factors_.elements_of(w) * static_cast<int64_t>(sizeof(float)));
  return reinterpret_cast<float*>(at);
}

void HostGradients::pack(const GradientTable& gradients, int lane, int num_lanes) {
  if (lane == 0 && factors_.has_any()) factors_.pack(gradients, factors_of(worker_));
  partial_sums_.restart(lane);
  const Block own = block_of(static_cast<int64_t>(pieces_.size()), num_lanes, lane);
  for (int64_t p = own.first; p < own.end(); ++p) {
    const Piece& piece = pieces_[static_cast<std::size_t>(p)];
    if (variables_[piece.variable]->like().scalar_type() == at::kDouble) {
      pack_piece<double>(gradients, lane, piece);
    } else {
      pack_piece<float>(gradients, lane, piece);
    }
  }
  if (streams_) end_stream_copies();
}

template <class T>
void HostGradients::pack_piece(const GradientTable& gradients, int lane, const Piece& piece) {
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    if (streams_) {
      stream_copy(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  };
  const std::vector<Subtree>& own = partial_sums_.subtrees(worker_);
  for (std::size_t s = 0; s < own.size(); ++s) {
    auto* const to = reinterpret_cast<T*>(sums_of(worker_, s) + places_[piece.variable]) + piece.offset;
    partial_sums_.write(gradients, lane, piece.variable, piece.offset, piece.count, own[s], to, copy);
  }
}

void HostGradients::set_leaves(GradientTable& gradients) const {
  const Block own = block_of(group_.num_replicas(), num_workers_, worker_);
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!summed_[i]) continue;
    for (int64_t r = own.first; r < own.end(); ++r) gradients.set_leaf(i, r, gradients.own_leaf(i, r - own.first));
    // Each partial sum of another worker stands as the leaf of its subtree's first replica.
    for (int64_t w = 0; w < num_workers_; ++w) {
      if (w == worker_) continue;
      const std::vector<Subtree>& theirs = partial_sums_.subtrees(w);
      for (std::size_t s = 0; s < theirs.size(); ++s) {
        gradients.set_leaf(i, theirs[s].first, Leaf(sums_of(w, s) + places_[i]));
      }
    }
  }
  factors_.set_leaves(gradients);
}

}  // namespace lockstep::internal
