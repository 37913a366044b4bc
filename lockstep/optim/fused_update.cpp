#include "lockstep/optim/fused_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

namespace {

const char kZeros[kBlockBytes * 2] = {};

template <class T>
GradientSum<T> sum_of(const void* const* row, int64_t replicas, int64_t count, char* scratch) {
  static const TreeSum<T> add = tree_sum<T>();
  const auto* inputs = reinterpret_cast<const T* const*>(row);
  if (replicas == 2 && inputs[0] && inputs[1]) return {inputs[0], inputs[1]};
  const T* sum = add(inputs, replicas, 0, count, reinterpret_cast<T*>(scratch));
  return {sum ? sum : reinterpret_cast<const T*>(kZeros), nullptr};  // present, but zero on every replica
}

}  // namespace

void FusedUpdate::begin_step() {
  const uint64_t now = VariableMemory::bindings();
  if (std::exchange(bindings_, now) == now && !is_shared_) return;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!is_shared_ || present(i)) look_up(i);
  }
}

void FusedUpdate::look_up(std::size_t i) {
  const UpdateTarget& owner = owners_[i];
  Target& target = targets_[i];
  const int64_t r = is_shared_ ? 0 : replicas_.first;
  target.weights = target.new_weights = memory_of(owner.variable->memory(r));
  target.checksums = target.new_checksums = owner.variable->checksums(0);
  const std::size_t slots = owner.own_rule ? 0 : owner.slots.size();  // take_trial() looks up those of own rules
  for (std::size_t s = 0; s < slots; ++s) target.slots[s] = target.new_slots[s] = memory_of(owner.slots[s]->memory(r));
  if (!is_shared_) return;
  const HostHalves::Half& next = owner.variable->as_mirrored().next_half();
  target.new_weights = reinterpret_cast<char*>(next.values);
  target.new_checksums = next.checksums;
  for (std::size_t s = 0; s < slots; ++s)
    target.new_slots[s] = reinterpret_cast<char*>(owner.slots[s]->as_mirrored().next_half().values);
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
  const BlockShares::Position begin = shares_.begin(range_.first + lane);
  const BlockShares::Position end = shares_.begin(range_.first + lane + 1);
  for (std::size_t i = begin.variable; i < targets_.size() && i <= end.variable; ++i) {
    if (!present(i)) continue;
    if (i + 1 < targets_.size() && targets_[i].bytes < kBlockBytes) fetch(gradients, i + 1);
    const int64_t first = i == begin.variable ? begin.block : 0;
    const int64_t last = i == end.variable ? end.block : blocks_of(targets_[i].bytes);
    for (int64_t block = first; block < last; ++block) visit(i, block);
  }
}

void FusedUpdate::measure(const GradientTable& gradients, int lane) {
  lanes_[lane].is_measured = false;
  run(gradients, lane, {});
}

void FusedUpdate::update(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured) {
  lanes_[lane].foreign_writes.clear();
  lanes_[lane].is_measured = is_measured;
  run(gradients, lane, {.update = true, .clip = clip});
  if (streams_) end_stream_copies();
}

void FusedUpdate::prepare(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured,
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

template <class T>
GradientSum<T> FusedUpdate::sum(const GradientTable& gradients, int lane, std::size_t i, int64_t offset,
                                int64_t count) {
  return sum_of<T>(row<T>(gradients, lane, i, offset, count), replicas_.count, count, lanes_[lane].scratch.data());
}

template GradientSum<float> FusedUpdate::sum(const GradientTable&, int, std::size_t, int64_t, int64_t);
template GradientSum<double> FusedUpdate::sum(const GradientTable&, int, std::size_t, int64_t, int64_t);

void FusedUpdate::run(const GradientTable& gradients, int lane, const Pass& pass) {
  for (FactorBlocks& made : lanes_[lane].made) made.restart();
  for_each_block(gradients, lane, [&](std::size_t i, int64_t block) {
    const bool is_own = targets_[i].kind == UpdateKind::kOwn;
    if (pass.calls_rules || (pass.update && is_own)) {
      if (pass.update) return take_trial(lane, i, block, pass);
      return is_own ? call_rule(gradients, lane, i, block, pass) : void();
    }
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
  const GradientSum<T> sum = this->sum<T>(gradients, lane, i, offset, count);
  BlockUpdate work{};
  work.gradient = sum.left;
  work.right_gradient = sum.right;
  work.count = count;
  work.clip = pass.clip.factor;
  double squares = 0;
  if (pass.update && pass.clip.limits()) {
    T* const clipped = reinterpret_cast<T*>(lanes_[lane].clipped.data());
    squares = write_clipped(sum, count, pass.clip, clipped);
    work.gradient = clipped;
    work.right_gradient = nullptr;
    work.clip = 1;
  }
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
    update_block<T>(target.kind)(work);
    if (pass.clip.limits()) work.sum_of_squares = squares;
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
GradientSum<float> FusedUpdate::wide_sum(const GradientTable& gradients, int lane, std::size_t i, int64_t offset,
                                         int64_t count, float*& buffer) {
  std::vector<const void*>& wide = lanes_[lane].row;
  for (int64_t r = 0; r < replicas_.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    FactorBlocks& made = lanes_[lane].made[at];
    const Leaf leaf = gradients.leaf(i, replicas_.first + r);
    if (gradients.is_wide(i) || !leaf.present()) {
      wide[at] = leaf.block<float>(offset, count, made);
      continue;
    }
    const Half* const values = leaf.block<Half>(offset, count, made);
    std::copy_n(values, count, buffer);
    wide[at] = std::exchange(buffer, buffer + kSumBlock);
  }
  return sum_of<float>(wide.data(), replicas_.count, count, lanes_[lane].scratch.data());
}

template GradientSum<float> FusedUpdate::wide_sum<at::Half>(const GradientTable&, int, std::size_t, int64_t, int64_t,
                                                            float*&);
template GradientSum<float> FusedUpdate::wide_sum<at::BFloat16>(const GradientTable&, int, std::size_t, int64_t,
                                                                int64_t, float*&);

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
    const GradientSum<float> sum = wide_sum<Half>(gradients, lane, i, offset, count, buffer);
    BlockUpdate work{};
    work.gradient = sum.left;
    work.right_gradient = sum.right;
    work.count = count;
    work.clip = pass.clip.factor;
    double own_squares = 0;
    if (pass.update && pass.clip.limits()) {
      float* const clipped = reinterpret_cast<float*>(lanes_[lane].clipped.data());
      own_squares = write_clipped(sum, count, pass.clip, clipped);
      work.gradient = clipped;
      work.right_gradient = nullptr;
      work.clip = 1;
    }
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
      update_block<float>(target.kind)(work);
      if (pass.clip.limits()) work.sum_of_squares = own_squares;
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

}  // namespace lockstep::internal::optim
