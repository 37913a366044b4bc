// An update in the host's memory. For each block of a lane: the leaves of the block, made where they are kept as
// factors; their sum in tree order; the update by one loop, which computes checksums and squares in the same pass; then
// the copies.
// Walk: optim/optimizer_step.cpp -> here -> reduce/loops/tree_sum.inc
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/optim/update/block_sums.h"
#include "lockstep/optim/update/update_kernels.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline optim {

namespace {

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

/// Calls visit(the type in which numbers are stored, the type in which they are computed) with values of these types.
template <class Visit>
void with_types(at::ScalarType type, const Visit& visit) {
  switch (type) {
    case at::kDouble: return visit(double{}, double{});
    case at::kHalf: return visit(at::Half{}, float{});
    case at::kBFloat16: return visit(at::BFloat16{}, float{});
    default: return visit(float{}, float{});
  }
}

/// The elements [first, last) of a block.
template <class Stored>
std::pair<int64_t, int64_t> elements_of(const PlannedTarget& target, int64_t block) {
  constexpr int64_t kElements = kBlockBytes / static_cast<int64_t>(sizeof(Stored));
  return {block * kElements, std::min((block + 1) * kElements, target.bytes / static_cast<int64_t>(sizeof(Stored)))};
}

struct alignas(64) LaneMemory {
  explicit LaneMemory(ReplicaRange replicas) : sums(replicas) {}
  BlockSums sums;
  std::vector<char> converted;  // blocks of half-precision values as float
  std::vector<char> written;    // a block's new weights and slots, where these go past the caches, or nowhere
  std::vector<char> clipped;    // a block of clipped sums
};

/// What a pass over a lane's blocks needs.
struct Pass : UpdatePass {
  BoundUpdate& update;
  LaneMemory& memory;
  int lane;
  bool updates;  // it writes new values; else it measures
  bool streams;  // past the caches
  const PlaceOfBlock* prepared = nullptr;
};

/// After a block of the first copy was read: `read` is the checksum of its bytes then. Notes a foreign write where that
/// is not the checksum that was kept. Where the block was updated, `*written` is the checksum of its bytes now; else
/// null. Then copies the block to the other copies.
void compare_and_copy(BoundUpdate& update, int lane, std::size_t i, int64_t block, uint64_t read,
                      const uint64_t* written) {
  const BoundTarget& target = update.targets()[i];
  if (!target.checksums) return;
  // Invariant: a kept checksum is that of the block as the library last left it, so a difference is a foreign write.
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t foreign = target.checksums[block] != read ? 0 : kNone;  // the first copy that is not as it was left
  if (written) target.new_checksums[block] = *written;
  const int64_t offset = block * kBlockBytes;
  for (std::size_t k = 0; k < target.other_copies.size(); ++k) {
    const BoundTarget::Copy& copy = target.other_copies[k];
    const int64_t bytes = std::min(kBlockBytes, target.planned.bytes - offset);
    if (foreign == kNone && copy.checksums[block] != checksum(copy.values + offset, bytes)) foreign = k + 1;
    if (!written) continue;
    std::memcpy(copy.values + offset, target.new_weights + offset, static_cast<std::size_t>(bytes));
    copy.checksums[block] = *written;
  }
  std::vector<ForeignWrite>& found = update.foreign_writes(lane);
  if (foreign != kNone && (found.empty() || found.back().target != i)) found.push_back({i, foreign});
}

/// What the loop of an update reads of a sum, which is clipped before where elements have a limit. Returns the squares
/// from before that.
template <class T>
double give_gradient(BlockUpdate& work, const Pass& pass, const GradientSum<T>& sum, int64_t count) {
  work.gradient = sum.left;
  work.right_gradient = sum.right;
  work.count = count;
  work.clip = pass.clip.factor;
  if (!pass.updates || !pass.clip.limits()) return 0;
  T* const clipped = reinterpret_cast<T*>(pass.memory.clipped.data());
  const double squares = write_clipped(sum, count, pass.clip, clipped);
  work.gradient = clipped;
  work.right_gradient = nullptr;
  work.clip = 1;
  return squares;
}

template <class T>
void run_block(const Pass& pass, std::size_t i, int64_t block) {
  const BoundTarget& target = pass.update.targets()[i];
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto [offset, end] = elements_of<T>(target.planned, block);
  const int64_t count = end - offset;
  BlockUpdate work{};
  const double squares = give_gradient(work, pass, pass.memory.sums.sum<T>(pass.gradients, i, offset, count), count);
  if (pass.updates) {
    const int64_t begin = offset * kSize;
    char* written = pass.memory.written.data();
    const auto place_of = [&](char* memory) {
      return pass.streams || pass.prepared ? std::exchange(written, written + kBlockBytes) : memory + begin;
    };
    work.weights = target.weights + begin;
    work.new_weights = pass.prepared ? (*pass.prepared)(i, begin) : place_of(target.new_weights);
    for (int s = 0; s < kMaxSlots && target.slots[s]; ++s) {
      work.slots[s] = target.slots[s] + begin;
      work.new_slots[s] = place_of(target.new_slots[s]);
    }
    work.coefficients = target.coefficients;
    update_block<T>(target.planned.kind)(work);
    if (pass.clip.limits()) work.sum_of_squares = squares;
    if (pass.streams && !pass.prepared) {
      const auto bytes = static_cast<std::size_t>(count * kSize);
      stream_copy(target.new_weights + begin, work.new_weights, bytes);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s)
        stream_copy(target.new_slots[s] + begin, work.new_slots[s], bytes);
    }
    compare_and_copy(pass.update, pass.lane, i, block, work.checksum_read,
                     pass.prepared ? nullptr : &work.checksum_written);
  } else {
    measure_block<T>()(work);
  }
  if (!pass.is_measured) pass.update.square(target.planned, block) = work.sum_of_squares;
}

template <class Half>
void run_half_block(const Pass& pass, std::size_t i, int64_t block) {
  // Everything is computed in float32 and rounded once, when it is stored.
  const BoundTarget& target = pass.update.targets()[i];
  const auto [first, last] = elements_of<Half>(target.planned, block);
  char* const weights = target.new_weights + block * kBlockBytes;  // where the old ones are
  const int64_t bytes = (last - first) * static_cast<int64_t>(sizeof(Half));
  const uint64_t read = pass.updates ? checksum(weights, bytes) : 0;
  double squares = 0;
  for (int64_t offset = first; offset < last; offset += kSumBlock) {
    const int64_t count = std::min(kSumBlock, last - offset);
    float* buffer = reinterpret_cast<float*>(pass.memory.converted.data());
    const auto widen = [&](const Half* values) {
      float* const to = buffer;
      for (int64_t j = 0; j < count; ++j) to[j] = static_cast<float>(values[j]);
      buffer += kSumBlock;
      return to;
    };
    BlockUpdate work{};
    const double own_squares =
        give_gradient(work, pass, pass.memory.sums.wide_sum<Half>(pass.gradients, i, offset, count, buffer), count);
    if (pass.updates) {
      const auto narrow = [&](const void* from, char* to) {
        Half* const values = reinterpret_cast<Half*>(to) + offset;
        for (int64_t j = 0; j < count; ++j) values[j] = static_cast<Half>(static_cast<const float*>(from)[j]);
      };
      const auto widen_at = [&](const char* from) { return widen(reinterpret_cast<const Half*>(from) + offset); };
      work.weights = work.new_weights = widen_at(target.weights);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s)
        work.slots[s] = work.new_slots[s] = widen_at(target.slots[s]);
      work.coefficients = target.coefficients;
      update_block<float>(target.planned.kind)(work);
      if (pass.clip.limits()) work.sum_of_squares = own_squares;
      narrow(work.new_weights, target.new_weights);
      for (int s = 0; s < kMaxSlots && target.slots[s]; ++s) narrow(work.new_slots[s], target.new_slots[s]);
    } else {
      measure_block<float>()(work);
    }
    squares += work.sum_of_squares;
  }
  if (pass.updates) {
    const uint64_t written = checksum(weights, bytes);
    compare_and_copy(pass.update, pass.lane, i, block, read, &written);
  }
  if (!pass.is_measured) pass.update.square(target.planned, block) = squares;
}

// Inlined always: GCC 12 leaves out calls of functions that do nothing but prefetch.
[[gnu::always_inline]] inline void fetch_beginning(const void* from) {
  constexpr int64_t kBytes = 256;  // behind these the processor prefetches by itself
  for (int64_t at = 0; at < kBytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}

/// Prefetches the beginning of target i's memory and of its gradients.
[[gnu::always_inline]] inline void fetch(const Pass& pass, std::size_t i) {
  const BoundTarget& target = pass.update.targets()[i];
  fetch_beginning(target.weights);
  for (const char* slot : target.slots) {
    if (slot) fetch_beginning(slot);
  }
  const ReplicaRange& replicas = pass.update.plan().replicas();
  for (int64_t r = replicas.first; r < replicas.first + replicas.count; ++r) {
    if (const void* gradient = pass.gradients.leaf(i, r).memory()) fetch_beginning(gradient);
  }
  __builtin_prefetch(target.checksums);
}

void run(const Pass& pass) {
  pass.memory.sums.restart();
  const std::vector<BoundTarget>& targets = pass.update.targets();
  pass.update.plan().for_each_range(pass.lane, [&](const BlockRange& blocks) {
    const std::size_t i = blocks.target;
    const PlannedTarget& planned = targets[i].planned;
    if (!targets[i].coefficients || (pass.updates && planned.kind == UpdateKind::kOwn)) return;
    if (i + 1 < targets.size() && planned.bytes < kBlockBytes) fetch(pass, i + 1);
    for (int64_t block = blocks.first; block < blocks.end; ++block) {
      with_types(planned.type, [&]<class Stored, class T>(Stored, T) {
        if constexpr (std::is_same_v<Stored, T>) {
          run_block<T>(pass, i, block);
        } else {
          run_half_block<Stored>(pass, i, block);
        }
      });
    }
  });
}

template <class Stored, class T>
void load_block(const Pass& pass, std::size_t i, int64_t block, T* clipped) {
  const PlannedTarget& planned = pass.update.targets()[i].planned;
  const auto [offset, end] = elements_of<Stored>(planned, block);
  double squares = 0;
  if constexpr (std::is_same_v<T, Stored>) {
    squares = write_clipped(pass.memory.sums.sum<T>(pass.gradients, i, offset, end - offset), end - offset, pass.clip,
                            clipped);
  } else {
    for (int64_t first = offset; first < end; first += kSumBlock) {
      const int64_t count = std::min(kSumBlock, end - first);
      auto* buffer = reinterpret_cast<float*>(pass.memory.converted.data());
      squares += write_clipped(pass.memory.sums.wide_sum<Stored>(pass.gradients, i, first, count, buffer), count,
                               pass.clip, clipped + (first - offset));
    }
  }
  if (!pass.is_measured) pass.update.square(planned, block) = squares;
}

class HostUpdateKernels final : public UpdateKernels {
 public:
  explicit HostUpdateKernels(const BoundUpdate& update)
      : lanes_(static_cast<std::size_t>(update.plan().lanes().count), LaneMemory(update.plan().replicas())) {
    int64_t written = 0;
    bool any_half = false;
    for (const PlannedTarget& target : update.plan().targets()) {
      written += target.bytes * (1 + target.slots);
      any_half = any_half || is_half(target.type);
    }
    streams_ = update.is_shared() && static_cast<std::size_t>(written) > kStreamedBytes;
    const int64_t rows = 1 + kMaxSlots + update.plan().replicas().count;
    for (LaneMemory& memory : lanes_) {
      if (streams_) memory.written.resize(kWrittenBytes);
      if (any_half) memory.converted.resize(static_cast<std::size_t>(rows * kSumBlock) * 2 * sizeof(float));
    }
  }

  void expect_factors(const BoundUpdate& update, std::size_t i, int64_t rows, int64_t columns) override {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      update.plan().for_each_range(static_cast<int>(lane), [&](const BlockRange& blocks) {
        if (blocks.target == i) lanes_[lane].sums.expect_factors(rows, columns);
      });
    }
  }

  void expect_limit() override {
    for (LaneMemory& memory : lanes_) memory.clipped.resize(kBlockBytes);
  }

  void measure(BoundUpdate& update, const GradientTable& gradients, int lane) override {
    run(pass_of(update, {gradients}, lane, /*updates=*/false));
  }

  void update(BoundUpdate& update, const UpdatePass& pass, int lane) override {
    run(pass_of(update, pass, lane, /*updates=*/true));
    if (streams_) end_stream_copies();
  }

  void prepare(BoundUpdate& update, const UpdatePass& pass, int lane, PlaceOfBlock place) override {
    lanes_[static_cast<std::size_t>(lane)].written.resize(kWrittenBytes);
    Pass prepares = pass_of(update, pass, lane, /*updates=*/true);
    prepares.prepared = &place;
    run(prepares);
  }

  void begin_loads(int lane) override { lanes_[static_cast<std::size_t>(lane)].sums.restart(); }

  void load(BoundUpdate& update, const UpdatePass& pass, int lane, const BlockRange& blocks,
            const RuleMemory& memory) override {
    const Pass loads = pass_of(update, pass, lane, /*updates=*/false);
    const BoundTarget& target = update.targets()[blocks.target];
    with_types(target.planned.type, [&]<class Stored, class T>(Stored, T) {
      const int64_t first = elements_of<Stored>(target.planned, blocks.first).first;
      const int64_t count = elements_of<Stored>(target.planned, blocks.end - 1).second - first;
      for (int64_t block = blocks.first; block < blocks.end; ++block) {
        const int64_t place = elements_of<Stored>(target.planned, block).first - first;
        load_block<Stored>(loads, blocks.target, block, static_cast<T*>(memory.gradient) + place);
      }
      const auto copy = [&](const char* from, void* to) {
        std::copy_n(reinterpret_cast<const Stored*>(from) + first, count, static_cast<T*>(to) + first);
      };
      copy(target.weights, memory.weights);
      const std::span<const BoundUpdate::OwnSlot> slots = update.own_slots(blocks.target);
      for (std::size_t s = 0; s < slots.size(); ++s) copy(slots[s].values, memory.slots[s]);
    });
  }

  void store(BoundUpdate& update, int lane, const BlockRange& blocks, const RuleMemory& memory,
             const PlaceOfBlock* place) override {
    const BoundTarget& target = update.targets()[blocks.target];
    for (int64_t block = blocks.first; block < blocks.end; ++block) {
      const int64_t begin = block * kBlockBytes;
      const int64_t bytes = std::min(kBlockBytes, target.planned.bytes - begin);
      const auto take = [&](const void* from, char* to) {
        with_types(target.planned.type, [&]<class Stored, class T>(Stored, T) {
          const int64_t size = sizeof(Stored);
          std::copy_n(static_cast<const T*>(from) + begin / size, bytes / size, reinterpret_cast<Stored*>(to));
        });
      };
      const uint64_t read = checksum(target.weights + begin, bytes);
      if (place) {
        take(memory.weights, (*place)(blocks.target, begin));
        compare_and_copy(update, lane, blocks.target, block, read, nullptr);
        continue;
      }
      take(memory.weights, target.new_weights + begin);
      const std::span<const BoundUpdate::OwnSlot> slots = update.own_slots(blocks.target);
      for (std::size_t s = 0; s < slots.size(); ++s) take(memory.slots[s], slots[s].new_values + begin);
      const uint64_t written = checksum(target.new_weights + begin, bytes);
      compare_and_copy(update, lane, blocks.target, block, read, &written);
    }
  }

 private:
  static constexpr std::size_t kWrittenBytes = (1 + kMaxSlots) * kBlockBytes;

  Pass pass_of(BoundUpdate& update, const UpdatePass& pass, int lane, bool updates) {
    return {pass, update, lanes_[static_cast<std::size_t>(lane)], lane, updates, streams_};
  }

  std::vector<LaneMemory> lanes_;  // of this process
  bool streams_ = false;           // new values go past the caches
};

}  // namespace

std::unique_ptr<UpdateKernels> host_update_kernels(const BoundUpdate& update) {
  return std::make_unique<HostUpdateKernels>(update);
}

}  // namespace lockstep::internal::optim
