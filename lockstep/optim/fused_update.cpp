#include "lockstep/optim/fused_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/stream_copy.h"
#include "lockstep/reduce/tree_sum.h"
#include "lockstep/variable/mirrored_state.h"

namespace lockstep::internal {

namespace {

// The fixed cost of a block, expressed as bytes: it keeps lanes in balance where variables are tiny.
constexpr int64_t kBlockOverhead = 512;

// Of all replicas' blocks that are made from factors, together: half of a second-level cache; or a few samples of the
// matrix where these are longer. A lane keeps this memory until the optimizer ends.
constexpr int64_t kMadeElements = 64 << 10;

const char kZeros[kBlockBytes * 2] = {};

char* memory_of(const at::Tensor& tensor) { return const_cast<char*>(static_cast<const char*>(address_of(tensor))); }

/// The sum over replicas of a block of gradients. Where two replicas both have a gradient, the update's own pass adds
/// `right` to `left`. Otherwise `left` is the sum, and `right` is null.
template <class T>
struct Sum {
  const T* left;
  const T* right;
};

template <class T>
Sum<T> sum_of(const void* const* row, int64_t replicas, int64_t count, T* scratch) {
  static const TreeSum<T> add = tree_sum<T>();
  const auto* inputs = reinterpret_cast<const T* const*>(row);
  if (replicas == 2 && inputs[0] && inputs[1]) return {inputs[0], inputs[1]};
  const T* sum = add(inputs, replicas, 0, count, scratch);
  return {sum ? sum : reinterpret_cast<const T*>(kZeros), nullptr};  // present, but zero on every replica
}

int64_t scratch_bytes(int64_t replicas) {
  return scratch_rows(replicas) * kSumBlock * static_cast<int64_t>(sizeof(double));
}

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

}  // namespace

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes)
    : FusedUpdate(std::move(targets), replicas, {0, lanes, lanes}, {}) {
  begin_step();
}

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, LaneRange lanes,
                         std::span<double> squares)
    : owners_(std::move(targets)),
      replicas_(replicas),
      range_(lanes),
      is_shared_(!squares.empty()),
      lanes_(static_cast<std::size_t>(lanes.count)),
      shared_squares_(squares) {
  int64_t blocks = 0;
  int64_t total = 0;
  int64_t written = 0;
  bool any_half = false;
  for (const UpdateTarget& owner : owners_) {
    VariableState& variable = *owner.variable;
    Target& target = targets_.emplace_back();
    target.bytes = variable.bytes();
    target.first_block = blocks;
    target.type = variable.number_type();
    target.kind = owner.kind;
    target.one_copy = variable.copies().size() <= 1;
    blocks += blocks_of(target.bytes);
    total += target.bytes + blocks_of(target.bytes) * kBlockOverhead;
    written += target.bytes * static_cast<int64_t>(1 + owner.slots.size());
    any_half = any_half || is_half(target.type);
  }
  streams_ = is_shared_ && static_cast<std::size_t>(written) > kStreamedBytes;
  if (!is_shared_) own_squares_.resize(static_cast<std::size_t>(blocks));
  // Cut the list of blocks into one share for each lane: a block belongs to the lane in whose share its middle lies.
  int64_t cost = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const int64_t bytes = targets_[i].bytes;
    for (int64_t block = 0; block < blocks_of(bytes); ++block) {
      const int64_t own_cost = std::min(kBlockBytes, bytes - block * kBlockBytes) + kBlockOverhead;
      while (static_cast<int64_t>(lane_begin_.size()) < lanes.all &&
             (cost + own_cost / 2) * lanes.all >= total * static_cast<int64_t>(lane_begin_.size())) {
        lane_begin_.push_back({i, block});
      }
      cost += own_cost;
    }
  }
  while (static_cast<int>(lane_begin_.size()) <= lanes.all) lane_begin_.push_back({targets_.size(), 0});
  for (LaneWork& work : lanes_) {
    work.row.resize(static_cast<std::size_t>(replicas.count));
    work.made.assign(work.row.size(), FactorBlocks(kMadeElements / replicas.count));
    work.scratch.resize(static_cast<std::size_t>(scratch_bytes(replicas.count)));
    if (streams_) work.written.resize(static_cast<std::size_t>((1 + kMaxSlots) * kBlockBytes));
    if (any_half)
      work.converted.resize(static_cast<std::size_t>((1 + kMaxSlots + replicas.count) * kSumBlock) * 2 * sizeof(float));
  }
}

void FusedUpdate::begin_step() {
  const uint64_t now = VariableMemory::bindings();
  if (std::exchange(bindings_, now) == now && !is_shared_) return;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!is_shared_ || present(i)) look_up(i);
  }
}

void FusedUpdate::expect_factors(std::size_t i) {
  const at::Tensor& like = owners_[i].variable->like();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto first = static_cast<std::size_t>(range_.first) + lane;
    const Place end = lane_begin_[first + 1];
    if (i < lane_begin_[first].target || i > end.target || (i == end.target && end.block == 0)) continue;
    for (FactorBlocks& made : lanes_[lane].made)
      made.reserve(like.size(0), like.size(1), kBlockBytes / static_cast<int64_t>(sizeof(float)));
  }
}

void FusedUpdate::look_up(std::size_t i) {
  const UpdateTarget& owner = owners_[i];
  Target& target = targets_[i];
  const int64_t r = is_shared_ ? 0 : replicas_.first;
  target.weights = target.new_weights = memory_of(owner.variable->memory(r));
  target.checksums = target.new_checksums = owner.variable->checksums(0);
  for (std::size_t s = 0; s < owner.slots.size(); ++s) {
    target.slots[s] = target.new_slots[s] = memory_of(owner.slots[s]->memory(r));
  }
  if (!is_shared_) return;
  const HostHalves::Half& next = owner.variable->as_mirrored().next_half();
  target.new_weights = reinterpret_cast<char*>(next.values);
  target.new_checksums = next.checksums;
  for (std::size_t s = 0; s < owner.slots.size(); ++s) {
    target.new_slots[s] = reinterpret_cast<char*>(owner.slots[s]->as_mirrored().next_half().values);
  }
}

void FusedUpdate::fetch(const GradientTable& gradients, std::size_t i) const {
  constexpr int64_t kBytes = 256;  // behind these the processor prefetches by itself
  const auto ask = [](const void* from) {
    for (int64_t at = 0; at < kBytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
  };
  const Target& target = targets_[i];
  ask(target.weights);
  for (const char* slot : target.slots) {
    if (slot) ask(slot);
  }
  for (int64_t r = 0; r < replicas_.count; ++r) {
    if (const void* gradient = gradients.leaf(i, replicas_.first + r).memory()) ask(gradient);
  }
  __builtin_prefetch(target.checksums);
}

template <class Visit>
void FusedUpdate::for_each_block(const GradientTable& gradients, int lane, const Visit& visit) {
  const Place begin = lane_begin_[range_.first + lane];
  const Place end = lane_begin_[range_.first + lane + 1];
  for (std::size_t i = begin.target; i < targets_.size() && i <= end.target; ++i) {
    if (!present(i)) continue;
    if (i + 1 < targets_.size() && targets_[i].bytes < kBlockBytes) fetch(gradients, i + 1);
    const int64_t first = i == begin.target ? begin.block : 0;
    const int64_t last = i == end.target ? end.block : blocks_of(targets_[i].bytes);
    for (int64_t block = first; block < last; ++block) visit(i, block);
  }
}

void FusedUpdate::measure(const GradientTable& gradients, int lane) {
  lanes_[lane].is_measured = false;
  run(gradients, lane, {});
}

void FusedUpdate::update(const GradientTable& gradients, int lane, double clip, bool is_measured) {
  lanes_[lane].foreign_writes.clear();
  lanes_[lane].is_measured = is_measured;
  run(gradients, lane, {.update = true, .clip = clip});
  if (streams_) end_stream_copies();
}

void FusedUpdate::prepare(const GradientTable& gradients, int lane, double clip, bool is_measured,
                          FunctionRef<char*(std::size_t, int64_t)> place) {
  lanes_[lane].foreign_writes.clear();
  lanes_[lane].is_measured = is_measured;
  lanes_[lane].written.resize(static_cast<std::size_t>((1 + kMaxSlots) * kBlockBytes));
  run(gradients, lane, {.update = true, .clip = clip, .prepared = &place});
}

template <class T>
const void* const* FusedUpdate::row(const GradientTable& gradients, int lane, std::size_t i, int64_t offset,
                                    int64_t count) {
  std::vector<const void*>& row = lanes_[lane].row;
  for (int64_t r = 0; r < replicas_.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    row[at] = gradients.leaf(i, replicas_.first + r).block<T>(offset, count, lanes_[lane].made[at]);
  }
  return row.data();
}

void FusedUpdate::run(const GradientTable& gradients, int lane, const Pass& pass) {
  for (FactorBlocks& made : lanes_[lane].made) made.restart();
  for_each_block(gradients, lane, [&](std::size_t i, int64_t block) {
    switch (targets_[i].type) {
      case at::kDouble: return run_block<double>(gradients, lane, i, block, pass);
      case at::kHalf: return run_half_block<at::Half>(gradients, lane, i, block, pass);
      case at::kBFloat16: return run_half_block<at::BFloat16>(gradients, lane, i, block, pass);
      default: return run_block<float>(gradients, lane, i, block, pass);
    }
  });
}

template <class T>
void FusedUpdate::run_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass) {
  const Target& target = targets_[i];
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t offset = block * (kBlockBytes / kSize);
  const int64_t count = std::min(kBlockBytes, target.bytes - block * kBlockBytes) / kSize;
  const Sum<T> sum = sum_of<T>(row<T>(gradients, lane, i, offset, count), replicas_.count, count,
                               reinterpret_cast<T*>(lanes_[lane].scratch.data()));
  BlockUpdate work{};
  work.gradient = sum.left;
  work.right_gradient = sum.right;
  work.count = count;
  if (pass.update) {
    const int64_t begin = offset * kSize;
    char* written = lanes_[lane].written.data();
    const auto place_of = [&](char* memory) {
      return streams_ || pass.prepared ? std::exchange(written, written + kBlockBytes) : memory + begin;
    };
    work.weights = target.weights + begin;
    work.new_weights = pass.prepared ? (*pass.prepared)(i, begin) : place_of(target.new_weights);
    for (int s = 0; s < kMaxSlots && target.slots[s]; ++s) {
      work.slots[s] = target.slots[s] + begin;
      work.new_slots[s] = place_of(target.new_slots[s]);
    }
    work.coefficients = target.coefficients;
    work.clip = pass.clip;
    update_block<T>(target.kind)(work);
    if (streams_) {
      const auto bytes = static_cast<std::size_t>(count * kSize);
      stream_copy(target.new_weights + begin, work.new_weights, bytes);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s)
        stream_copy(target.new_slots[s] + begin, work.new_slots[s], bytes);
    }
    compare_and_copy(lane, i, block, work.checksum_read, pass.prepared ? nullptr : &work.checksum_written);
  } else {
    measure_block<T>()(work);
  }
  if (!lanes_[lane].is_measured) square(target.first_block + block) = work.sum_of_squares;
}

template <class Half>
void FusedUpdate::run_half_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block,
                                 const Pass& pass) {
  // Everything is computed in float32 and rounded once, when it is stored.
  const Target& target = targets_[i];
  constexpr int64_t kElements = kBlockBytes / static_cast<int64_t>(sizeof(Half));
  const int64_t first = block * kElements;
  const int64_t last = std::min(first + kElements, target.bytes / static_cast<int64_t>(sizeof(Half)));
  char* const weights = target.new_weights + first * static_cast<int64_t>(sizeof(Half));  // where the old ones are
  const int64_t bytes = (last - first) * static_cast<int64_t>(sizeof(Half));
  const uint64_t read = pass.update ? checksum(weights, bytes) : 0;
  double squares = 0;
  for (int64_t offset = first; offset < last; offset += kSumBlock) {
    const int64_t count = std::min(kSumBlock, last - offset);
    float* buffer = reinterpret_cast<float*>(lanes_[lane].converted.data());
    const auto widen = [&](const Half* values) {
      float* const to = buffer;
      for (int64_t j = 0; j < count; ++j) to[j] = static_cast<float>(values[j]);
      buffer += kSumBlock;
      return to;
    };
    std::vector<const void*>& wide = lanes_[lane].row;
    for (int64_t r = 0; r < replicas_.count; ++r) {
      FactorBlocks& made = lanes_[lane].made[static_cast<std::size_t>(r)];
      const Leaf leaf = gradients.leaf(i, replicas_.first + r);
      const bool is_wide = gradients.is_wide(i) || !leaf.present();
      wide[static_cast<std::size_t>(r)] =
          is_wide ? leaf.block<float>(offset, count, made) : widen(leaf.block<Half>(offset, count, made));
    }
    const Sum<float> sum =
        sum_of<float>(wide.data(), replicas_.count, count, reinterpret_cast<float*>(lanes_[lane].scratch.data()));
    BlockUpdate work{};
    work.gradient = sum.left;
    work.right_gradient = sum.right;
    work.count = count;
    if (pass.update) {
      const auto narrow = [&](const void* from, char* to) {
        Half* const values = reinterpret_cast<Half*>(to) + offset;
        for (int64_t j = 0; j < count; ++j) values[j] = static_cast<Half>(static_cast<const float*>(from)[j]);
      };
      const auto widen_at = [&](const char* from) { return widen(reinterpret_cast<const Half*>(from) + offset); };
      work.weights = work.new_weights = widen_at(target.weights);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s)
        work.slots[s] = work.new_slots[s] = widen_at(target.slots[s]);
      work.coefficients = target.coefficients;
      work.clip = pass.clip;
      update_block<float>(target.kind)(work);
      narrow(work.new_weights, target.new_weights);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s) narrow(work.new_slots[s], target.new_slots[s]);
    } else {
      measure_block<float>()(work);
    }
    squares += work.sum_of_squares;
  }
  if (pass.update) {
    const uint64_t written = checksum(weights, bytes);
    compare_and_copy(lane, i, block, read, &written);
  }
  if (!lanes_[lane].is_measured) square(target.first_block + block) = squares;
}

void FusedUpdate::compare_and_copy(int lane, std::size_t i, int64_t block, uint64_t read, const uint64_t* written) {
  const Target& target = targets_[i];
  if (!target.checksums) return;
  // Invariant: a kept checksum is that of the block as the library last left it, so a difference is a foreign write.
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t foreign = target.checksums[block] != read ? 0 : kNone;  // the first copy that is not as it was left
  if (written) target.new_checksums[block] = *written;
  if (!target.one_copy) {
    VariableState& variable = *owners_[i].variable;
    const int64_t offset = block * kBlockBytes;
    const int64_t bytes = std::min(kBlockBytes, target.bytes - offset);
    for (std::size_t copy = 1; copy < variable.copies().size(); ++copy) {
      char* const to = memory_of(variable.copies()[copy]) + offset;
      if (foreign == kNone && variable.checksums(copy)[block] != checksum(to, bytes)) foreign = copy;
      if (!written) continue;
      std::memcpy(to, target.new_weights + offset, static_cast<std::size_t>(bytes));
      variable.checksums(copy)[block] = *written;
    }
  }
  std::vector<ForeignWrite>& found = lanes_[lane].foreign_writes;
  if (foreign != kNone && (found.empty() || found.back().target != i)) found.push_back({i, foreign});
}

}  // namespace lockstep::internal
