#include "lockstep/optim/row_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/core/blocks.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/loops/update_block.h"
#include "lockstep/reduce/grouped_sum.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline optim {

namespace {

constexpr std::size_t kNoCopy = ~std::size_t{0};

/// Where rows are cut: the first row of each run, and the number of rows. Rows of one block are in one run.
std::vector<std::size_t> runs_of(const std::vector<int64_t>& ids, int64_t row_bytes) {
  std::vector<std::size_t> runs{0};
  for (std::size_t k = 1; k < ids.size(); ++k) {
    const int64_t last_block = ((ids[k - 1] + 1) * row_bytes - 1) / kBlockBytes;
    if (ids[k] * row_bytes / kBlockBytes > last_block) runs.push_back(k);
  }
  if (!ids.empty()) runs.push_back(ids.size());
  return runs;
}

}  // namespace

void RowUpdate::begin(int lanes) {
  targets_.clear();
  lanes_.resize(static_cast<std::size_t>(lanes));
}

void RowUpdate::add(std::size_t i, const UpdateTarget& target, int64_t component, const Coefficients& coefficients,
                    std::vector<std::shared_ptr<const Rows>> rows) {
  VariableState& variable = *target.variable;
  const at::Tensor& numbers = variable.numbers();
  Target one{};
  one.variable = i;
  one.coefficients = coefficients;
  one.type = numbers.scalar_type();
  one.kind = target.kind;
  one.bytes = variable.bytes();
  one.width = numbers.size(0) == 0 ? 0 : numbers.numel() / numbers.size(0);
  one.row_bytes = one.width * static_cast<int64_t>(numbers.element_size());
  std::vector<std::span<const int64_t>> ids;
  for (const auto& of_replica : rows) {
    ids.emplace_back();
    if (of_replica && one.width > 0) ids.back() = of_replica->ids;
  }
  one.rows = std::move(rows);
  one.merged = merged(ids);
  one.runs = runs_of(one.merged.ids, one.row_bytes);
  one.squares.assign(one.merged.ids.size(), 0);
  one.foreign_by_lane.assign(lanes_.size(), kNoCopy);
  if (variable.is_trained_locally()) {
    one.copies.push_back({memory_of(variable.memory(component)), nullptr});
  } else {
    for (std::size_t copy = 0; copy < variable.copies().size(); ++copy)
      one.copies.push_back({memory_of(variable.copies()[copy]), variable.checksums(copy)});
  }
  for (const auto& slot : target.slots) one.slots.push_back(memory_of(slot->memory(component)));
  const auto replicas = static_cast<int64_t>(one.rows.size());
  for (LaneWork& work : lanes_) {
    work.inputs.assign(std::max(work.inputs.size(), one.rows.size()), nullptr);
    const auto scratch = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock) * sizeof(double);
    if (work.scratch.size() < scratch) work.scratch.resize(scratch);
    work.clipped.resize(static_cast<std::size_t>(kSumBlock) * sizeof(double));
    work.converted.resize(static_cast<std::size_t>((1 + kMaxSlots) * kSumBlock) * sizeof(float));
  }
  targets_.push_back(std::move(one));
}

bool RowUpdate::has(std::size_t i) const {
  return std::ranges::any_of(targets_, [&](const Target& target) { return target.variable == i; });
}

template <class T>
const T* RowUpdate::sum_of_row(LaneWork& work, const Target& target, std::size_t row, int64_t offset,
                               int64_t count) const {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const auto begin = target.merged.parts.begin() + static_cast<std::ptrdiff_t>(target.merged.first[row]);
  const auto end = target.merged.parts.begin() + static_cast<std::ptrdiff_t>(target.merged.first[row + 1]);
  const auto row_of = [&](const MergedRows::Part& part) {
    const Rows& rows = *target.rows[static_cast<std::size_t>(part.replica)];
    return host_numbers<T>(rows.values).data() + part.index * target.width;
  };
  if (end - begin == 1) return row_of(*begin) + offset;
  for (auto part = begin; part != end; ++part) work.inputs[static_cast<std::size_t>(part->replica)] = row_of(*part);
  const T* const sum =
      sum_of(reinterpret_cast<const T* const*>(work.inputs.data()), static_cast<int64_t>(target.rows.size()), offset,
             count, reinterpret_cast<T*>(work.scratch.data()));
  for (auto part = begin; part != end; ++part) work.inputs[static_cast<std::size_t>(part->replica)] = nullptr;
  return sum;
}

template <class T, class Stored>
void RowUpdate::run_row(LaneWork& work, Target& target, std::size_t row, bool updates, const Clip& clip) const {
  const int64_t place = target.merged.ids[row] * target.row_bytes;
  double squares = 0;
  for (int64_t offset = 0; offset < target.width; offset += kSumBlock) {
    const int64_t count = std::min(kSumBlock, target.width - offset);
    BlockUpdate block{};
    block.gradient = sum_of_row<T>(work, target, row, offset, count);
    block.count = count;
    if (!updates) {
      measure_block<T>()(block);
      squares += block.sum_of_squares;
      continue;
    }
    block.coefficients = &target.coefficients;
    block.clip = clip.factor;
    double before = 0;
    if (clip.limits()) {
      T* const clipped = reinterpret_cast<T*>(work.clipped.data());
      before = write_clipped<T>({static_cast<const T*>(block.gradient), nullptr}, count, clip, clipped);
      block.gradient = clipped;
      block.clip = 1;
    }
    const auto at = [&](char* memory) { return reinterpret_cast<Stored*>(memory + place) + offset; };
    Stored* const weights = at(target.copies.front().weights);
    T* wide = reinterpret_cast<T*>(work.converted.data());
    const auto widen = [&](Stored* from) -> T* {
      if constexpr (std::is_same_v<T, Stored>) return from;
      T* const to = std::exchange(wide, wide + kSumBlock);
      std::copy_n(from, count, to);
      return to;
    };
    const auto narrow = [&](const void* from, Stored* to) {
      if constexpr (!std::is_same_v<T, Stored>) {
        for (int64_t j = 0; j < count; ++j) to[j] = static_cast<Stored>(static_cast<const T*>(from)[j]);
      }
    };
    block.weights = block.new_weights = widen(weights);
    for (std::size_t s = 0; s < target.slots.size(); ++s)
      block.slots[s] = block.new_slots[s] = widen(at(target.slots[s]));
    update_block<T>(target.kind)(block);
    narrow(block.new_weights, weights);
    for (std::size_t s = 0; s < target.slots.size(); ++s) narrow(block.new_slots[s], at(target.slots[s]));
    for (std::size_t copy = 1; copy < target.copies.size(); ++copy)
      std::memcpy(at(target.copies[copy].weights), weights, static_cast<std::size_t>(count) * sizeof(Stored));
    squares += clip.limits() ? before : block.sum_of_squares;
  }
  target.squares[row] = squares;
}

template <class Visit>
void RowUpdate::for_each_block(const Target& target, std::size_t first, std::size_t end, const Visit& visit) {
  for (std::size_t copy = 0; copy < target.copies.size(); ++copy) {
    if (!target.copies[copy].checksums) continue;
    int64_t next = 0;  // blocks before it have been visited
    for (std::size_t row = first; row < end; ++row) {
      const int64_t begin = target.merged.ids[row] * target.row_bytes;
      const int64_t last = (begin + target.row_bytes - 1) / kBlockBytes;
      for (next = std::max(next, begin / kBlockBytes); next <= last; ++next) visit(copy, next);
    }
  }
}

void RowUpdate::run(int lane, bool updates, const Clip& clip) {
  LaneWork& work = lanes_[static_cast<std::size_t>(lane)];
  for (Target& target : targets_) {
    const auto checksum_of = [&](std::size_t copy, int64_t block) {
      const int64_t offset = block * kBlockBytes;
      return checksum(target.copies[copy].weights + offset, std::min(kBlockBytes, target.bytes - offset));
    };
    const auto compare = [&](std::size_t copy, int64_t block) {
      // Invariant: a kept checksum is that of the block as the library last left it, so a difference is a foreign
      // write.
      std::size_t& foreign = target.foreign_by_lane[static_cast<std::size_t>(lane)];
      if (target.copies[copy].checksums[block] != checksum_of(copy, block)) foreign = std::min(foreign, copy);
    };
    const auto renew = [&](std::size_t copy, int64_t block) {
      target.copies[copy].checksums[block] = checksum_of(copy, block);
    };
    const Block own = block_of(static_cast<int64_t>(target.runs.size()) - 1, static_cast<int64_t>(lanes_.size()), lane);
    for (int64_t k = own.first; k < own.end(); ++k) {
      const std::size_t first = target.runs[static_cast<std::size_t>(k)];
      const std::size_t end = target.runs[static_cast<std::size_t>(k) + 1];
      if (updates) for_each_block(target, first, end, compare);
      for (std::size_t row = first; row < end; ++row) {
        switch (target.type) {
          case at::kDouble: run_row<double, double>(work, target, row, updates, clip); break;
          case at::kHalf: run_row<float, at::Half>(work, target, row, updates, clip); break;
          case at::kBFloat16: run_row<float, at::BFloat16>(work, target, row, updates, clip); break;
          default: run_row<float, float>(work, target, row, updates, clip);
        }
      }
      if (updates) for_each_block(target, first, end, renew);
    }
  }
}

void RowUpdate::measure(int lane) { run(lane, false, {}); }

void RowUpdate::update(int lane, const Clip& clip) { run(lane, true, clip); }

double RowUpdate::sum_of_squares() const {
  GroupedSum total;
  for (const Target& target : targets_) {
    for (const double square : target.squares) total.add(square);
  }
  return total.result();
}

std::vector<std::size_t> RowUpdate::variables_not_finite() const {
  std::vector<std::size_t> found;
  for (const Target& target : targets_) {
    const auto is_finite = [](double square) { return std::isfinite(square); };
    if (!std::ranges::all_of(target.squares, is_finite)) found.push_back(target.variable);
  }
  return found;
}

std::vector<std::size_t> RowUpdate::replicas_not_finite(std::size_t i) const {
  std::vector<std::size_t> found;
  for (const Target& target : targets_) {
    for (std::size_t r = 0; target.variable == i && r < target.rows.size(); ++r) {
      if (target.rows[r] && !at::isfinite(target.rows[r]->values).all().item<bool>()) found.push_back(r);
    }
  }
  return found;
}

bool RowUpdate::sum_is_finite(std::size_t i) const {
  LaneWork work = lanes_.front();
  const auto is_finite = [&]<class T>(const Target& target, T) {
    for (std::size_t row = 0; row < target.merged.ids.size(); ++row) {
      for (int64_t offset = 0; offset < target.width; offset += kSumBlock) {
        const int64_t count = std::min(kSumBlock, target.width - offset);
        const T* const sum = sum_of_row<T>(work, target, row, offset, count);
        if (!std::all_of(sum, sum + count, [](T x) { return std::isfinite(x); })) return false;
      }
    }
    return true;
  };
  for (const Target& target : targets_) {
    if (target.variable != i) continue;
    return target.type == at::kDouble ? is_finite(target, double{}) : is_finite(target, float{});
  }
  return true;
}

std::vector<ForeignWrite> RowUpdate::take_foreign_writes() {
  std::vector<ForeignWrite> found;
  for (Target& target : targets_) {
    const std::size_t copy = *std::ranges::min_element(target.foreign_by_lane);
    if (copy != kNoCopy) found.push_back({target.variable, copy});
    std::ranges::fill(target.foreign_by_lane, kNoCopy);
  }
  return found;
}

}  // namespace lockstep::internal::optim
