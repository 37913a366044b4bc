#include "lockstep/optim/fused_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/core/tree_sum.h"

namespace lockstep::internal {

namespace {

// What handling a block costs beyond its bytes, in bytes: it keeps lanes in balance where variables are tiny.
constexpr int64_t kBlockOverhead = 512;

const char kZeros[kBlockBytes * 2] = {};

char* memory_of(const at::Tensor& tensor) { return const_cast<char*>(static_cast<const char*>(address_of(tensor))); }

/// The sum over replicas of a stretch of gradients, as the last addition's two sides; `right` is null where there is
/// nothing left to add.
template <class T>
struct Halves {
  const T* left;
  const T* right;
};

template <class T>
Halves<T> halves_of(const void* const* row, int64_t replicas, int64_t offset, int64_t count, T* scratch) {
  const auto* inputs = reinterpret_cast<const T* const*>(row);
  if (replicas == 1) return {inputs[0] ? inputs[0] + offset : reinterpret_cast<const T*>(kZeros), nullptr};
  static const TreeSum<T> sum_of = tree_sum<T>();
  const int64_t split = split_of(replicas);
  const T* left = sum_of(inputs, split, offset, count, scratch);
  const T* right = sum_of(inputs + split, replicas - split, offset, count, scratch + scratch_rows(split) * kSumBlock);
  if (!left) std::swap(left, right);
  if (!left) left = reinterpret_cast<const T*>(kZeros);  // present, but zero on every replica
  return {left, right};
}

int64_t scratch_bytes(int64_t replicas) {
  return 2 * scratch_rows(replicas) * kSumBlock * static_cast<int64_t>(sizeof(double));
}

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

}  // namespace

FusedUpdate::FusedUpdate(std::vector<UpdateTarget> targets, int64_t replicas, int lanes)
    : targets_(std::move(targets)), replicas_(replicas), lanes_(static_cast<std::size_t>(lanes)) {
  int64_t blocks = 0;
  int64_t total = 0;
  for (const UpdateTarget& target : targets_) {
    first_block_.push_back(blocks);
    blocks += blocks_of(target.variable->bytes());
    total += target.variable->bytes() + blocks_of(target.variable->bytes()) * kBlockOverhead;
  }
  first_block_.push_back(blocks);
  squares_.resize(static_cast<std::size_t>(blocks));
  // Cut the row of blocks where each lane has had its share.
  int64_t cost = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const int64_t bytes = targets_[i].variable->bytes();
    for (int64_t block = 0; block < blocks_of(bytes); ++block) {
      while (static_cast<int64_t>(lane_begin_.size()) < lanes &&
             cost * lanes >= total * static_cast<int64_t>(lane_begin_.size())) {
        lane_begin_.push_back({i, block});
      }
      cost += std::min(kBlockBytes, bytes - block * kBlockBytes) + kBlockOverhead;
    }
  }
  while (static_cast<int>(lane_begin_.size()) <= lanes) lane_begin_.push_back({targets_.size(), 0});
  const bool any_half = std::any_of(targets_.begin(), targets_.end(), [](const UpdateTarget& target) {
    return is_half(target.variable->like().scalar_type());
  });
  for (LaneWork& work : lanes_) {
    work.scratch.resize(static_cast<std::size_t>(scratch_bytes(replicas)));
    if (any_half)
      work.converted.resize(static_cast<std::size_t>((1 + kMaxSlots + replicas) * kSumBlock) * 2 * sizeof(float));
  }
}

template <class Visit>
void FusedUpdate::for_each_block(int lane, const Visit& visit) {
  const Place begin = lane_begin_[lane];
  const Place end = lane_begin_[lane + 1];
  for (std::size_t i = begin.target; i < targets_.size() && i <= end.target; ++i) {
    if (!targets_[i].present) continue;
    const int64_t first = i == begin.target ? begin.block : 0;
    const int64_t last = i == end.target ? end.block : first_block_[i + 1] - first_block_[i];
    for (int64_t block = first; block < last; ++block) visit(i, block);
  }
}

void FusedUpdate::measure(const GradientTable& gradients, int lane) { run(gradients, lane, 1, false); }

void FusedUpdate::update(const GradientTable& gradients, int lane, double clip) {
  lanes_[lane].foreign_writes.clear();
  run(gradients, lane, clip, true);
}

void FusedUpdate::run(const GradientTable& gradients, int lane, double clip, bool update) {
  for_each_block(lane, [&](std::size_t i, int64_t block) {
    switch (targets_[i].variable->like().scalar_type()) {
      case at::kDouble: return run_block<double>(gradients, lane, i, block, clip, update);
      case at::kHalf: return run_half_block<at::Half>(gradients, lane, i, block, clip, update);
      case at::kBFloat16: return run_half_block<at::BFloat16>(gradients, lane, i, block, clip, update);
      default: return run_block<float>(gradients, lane, i, block, clip, update);
    }
  });
}

template <class T>
void FusedUpdate::run_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, double clip,
                            bool update) {
  const UpdateTarget& target = targets_[i];
  const int64_t offset = block * (kBlockBytes / static_cast<int64_t>(sizeof(T)));
  const int64_t count =
      std::min(kBlockBytes / static_cast<int64_t>(sizeof(T)), target.variable->like().numel() - offset);
  const Halves<T> sum =
      halves_of<T>(gradients.row(i), replicas_, offset, count, reinterpret_cast<T*>(lanes_[lane].scratch.data()));
  BlockUpdate work{};
  work.gradient = sum.left;
  work.right_gradient = sum.right;
  work.count = count;
  if (update) {
    work.weights = reinterpret_cast<T*>(memory_of(target.variable->copies().front())) + offset;
    for (std::size_t s = 0; s < target.slots.size(); ++s) {
      work.slots[s] = reinterpret_cast<T*>(memory_of(target.slots[s])) + offset;
    }
    work.coefficients = &target.coefficients;
    work.clip = clip;
    update_block<T>(target.kind)(work);
    compare_and_copy(lane, i, block, work.checksum_read, work.checksum_written);
  } else {
    measure_block<T>()(work);
  }
  squares_[static_cast<std::size_t>(first_block_[i] + block)] = work.sum_of_squares;
}

template <class Half>
void FusedUpdate::run_half_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, double clip,
                                 bool update) {
  // Everything is computed in float32 and rounded once, when it is stored.
  const UpdateTarget& target = targets_[i];
  constexpr int64_t kElements = kBlockBytes / static_cast<int64_t>(sizeof(Half));
  const int64_t first = block * kElements;
  const int64_t last = std::min(first + kElements, target.variable->like().numel());
  char* const weights = memory_of(target.variable->copies().front()) + first * static_cast<int64_t>(sizeof(Half));
  const int64_t bytes = (last - first) * static_cast<int64_t>(sizeof(Half));
  const uint64_t read = update ? checksum(weights, bytes) : 0;
  double squares = 0;
  for (int64_t offset = first; offset < last; offset += kSumBlock) {
    const int64_t count = std::min(kSumBlock, last - offset);
    float* buffer = reinterpret_cast<float*>(lanes_[lane].converted.data());
    const auto widen = [&](const void* from) {
      const Half* values = static_cast<const Half*>(from) + offset;
      float* const to = buffer;
      for (int64_t j = 0; j < count; ++j) to[j] = static_cast<float>(values[j]);
      buffer += kSumBlock;
      return to;
    };
    std::vector<const void*> wide(static_cast<std::size_t>(replicas_), nullptr);
    for (int64_t r = 0; r < replicas_; ++r) {
      if (const void* gradient = gradients.row(i)[r]) wide[static_cast<std::size_t>(r)] = widen(gradient);
    }
    const Halves<float> sum =
        halves_of<float>(wide.data(), replicas_, 0, count, reinterpret_cast<float*>(lanes_[lane].scratch.data()));
    BlockUpdate work{};
    work.gradient = sum.left;
    work.right_gradient = sum.right;
    work.count = count;
    if (update) {
      const auto narrow = [&](const void* from, char* to) {
        Half* const values = reinterpret_cast<Half*>(to) + offset;
        for (int64_t j = 0; j < count; ++j) values[j] = static_cast<Half>(static_cast<const float*>(from)[j]);
      };
      work.weights = widen(memory_of(target.variable->copies().front()));
      for (std::size_t s = 0; s < target.slots.size(); ++s) work.slots[s] = widen(memory_of(target.slots[s]));
      work.coefficients = &target.coefficients;
      work.clip = clip;
      update_block<float>(target.kind)(work);
      narrow(work.weights, memory_of(target.variable->copies().front()));
      for (std::size_t s = 0; s < target.slots.size(); ++s) narrow(work.slots[s], memory_of(target.slots[s]));
    } else {
      measure_block<float>()(work);
    }
    squares += work.sum_of_squares;
  }
  if (update) compare_and_copy(lane, i, block, read, checksum(weights, bytes));
  squares_[static_cast<std::size_t>(first_block_[i] + block)] = squares;
}

void FusedUpdate::compare_and_copy(int lane, std::size_t i, int64_t block, uint64_t read, uint64_t written) {
  VariableState& variable = *targets_[i].variable;
  const int64_t offset = block * kBlockBytes;
  const int64_t bytes = std::min(kBlockBytes, variable.bytes() - offset);
  bool foreign = variable.checksums(0)[block] != read;
  variable.checksums(0)[block] = written;
  const char* const source = memory_of(variable.copies().front()) + offset;
  for (std::size_t copy = 1; copy < variable.copies().size(); ++copy) {
    char* const to = memory_of(variable.copies()[copy]) + offset;
    foreign = foreign || variable.checksums(copy)[block] != checksum(to, bytes);
    std::memcpy(to, source, static_cast<std::size_t>(bytes));
    variable.checksums(copy)[block] = written;
  }
  std::vector<std::size_t>& found = lanes_[lane].foreign_writes;
  if (foreign && (found.empty() || found.back() != i)) found.push_back(i);
}

double FusedUpdate::global_norm() const {
  double total = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!targets_[i].present) continue;
    for (int64_t block = first_block_[i]; block < first_block_[i + 1]; ++block) total += squares_[block];
  }
  return std::sqrt(total);
}

std::vector<std::size_t> FusedUpdate::take_foreign_writes() {
  std::vector<std::size_t> all;
  for (LaneWork& work : lanes_) {
    all.insert(all.end(), work.foreign_writes.begin(), work.foreign_writes.end());
    work.foreign_writes.clear();
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<std::size_t> FusedUpdate::variables_not_finite() const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!targets_[i].present) continue;
    const bool finite = std::all_of(squares_.begin() + first_block_[i], squares_.begin() + first_block_[i + 1],
                                    [](double square) { return std::isfinite(square); });
    if (!finite) found.push_back(i);
  }
  return found;
}

std::vector<int64_t> FusedUpdate::replicas_not_finite(const GradientTable& gradients, std::size_t i) const {
  std::vector<int64_t> found;
  const at::Tensor& like = targets_[i].variable->like();
  for (int64_t r = 0; r < replicas_; ++r) {
    const void* gradient = gradients.row(i)[r];
    if (!gradient) continue;
    const at::Tensor view = at::from_blob(const_cast<void*>(gradient), {like.numel()}, like.options());
    if (!at::isfinite(view).all().item<bool>()) found.push_back(r);
  }
  return found;
}

}  // namespace lockstep::internal
