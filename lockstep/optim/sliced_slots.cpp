#include "lockstep/optim/sliced_slots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/memory/lazy_zeros.h"
#include "lockstep/optim/compare_values.h"
#include "lockstep/optim/optimizer_digest.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

// What a worker says of its slots, or of one.
constexpr char kWritten = 'w';
constexpr char kNotWritten = '-';

}  // namespace

SlicedSlots::SlicedSlots(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets,
                         const std::vector<std::vector<double>>& initial, const Slices& slices, std::string name)
    : group_(group), slices_(slices), name_(std::move(name)), worker_(group.rounds().worker_index()) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    for (std::size_t s = 0; s < targets[i].slots.size(); ++s) {
      const Slot& slot = slots_.emplace_back(Slot{targets[i].slots[s], i});
      if (initial[i][s] != 0) {
        const Slice own = slices_.of(i, worker_);
        const at::Tensor& all = slot.state->copies().front();
        const auto size = static_cast<int64_t>(all.element_size());
        at::from_blob(slice_of(slot, worker_).data(), {own.bytes / size}, all.options()).fill_(initial[i][s]);
      }
      slot.mirrored().set_slicing(Slicing::kSliced);
    }
  }
}

std::string SlicedSlots::report() const {
  const auto is_written = [](const Slot& slot) { return slot.mirrored().slicing() == Slicing::kWritten; };
  return std::string(1, std::any_of(slots_.begin(), slots_.end(), is_written) ? kWritten : kNotWritten);
}

void SlicedSlots::slice(std::span<const std::string> reports) {
  const auto has_written = [](const std::string& report) { return report.front() == kWritten; };
  if (std::any_of(reports.begin(), reports.end(), has_written)) compare_written();
  for (const Slot& slot : slots_) {
    if (slot.mirrored().slicing() == Slicing::kSliced) continue;
    const Slice own = slices_.of(slot.target, worker_);
    const at::Tensor& all = slot.state->copies().front();
    clear_lazily(all, 0, own.begin);
    clear_lazily(all, own.end(), slot.state->bytes() - own.end());
    slot.mirrored().set_slicing(Slicing::kSliced);
  }
}

void SlicedSlots::compare_written() const {
  // Each worker keeps its own slices: where other workers had other values, nobody would find it later.
  const auto fill_in = [&](Proposal& mine) {
    for (const Slot& slot : slots_)
      mine.data += slot.mirrored().slicing() == Slicing::kWritten ? kWritten : kNotWritten;
  };
  const auto all =
      agree_on_call(group_.rounds(), {.call = "slots of an update", .name = name_, .step = group_.step()}, fill_in);
  std::vector<MirroredState*> written;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (all.front().data.at(s) == kWritten) written.push_back(&slots_[s].mirrored());
    for (std::size_t w = 1; w < all.size(); ++w) {
      if (all[w].data.at(s) == all.front().data[s]) continue;
      const bool by_first = all.front().data[s] == kWritten;
      throw DivergenceError("LS-DIVERGED",
                            fmt::format("slot '{}' was written on worker {} and not on worker {}",
                                        slots_[s].state->name(), by_first ? 0 : w, by_first ? w : 0),
                            "write it on all workers, with the same value");
    }
  }
  compare_values(group_, name_, written);
}

std::vector<std::vector<SlicedSlots::Slot>> SlicedSlots::in_groups(const std::vector<Slot>& slots) {
  constexpr int64_t kTogether = int64_t{16} << 20;  // bytes
  std::vector<std::vector<Slot>> groups;
  int64_t bytes = kTogether;
  for (const Slot& slot : slots) {
    if (bytes + slot.state->bytes() > kTogether) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(slot);
    bytes += slot.state->bytes();
  }
  return groups;
}

void SlicedSlots::gather() {
  std::vector<std::vector<Slot>> groups;
  std::vector<std::byte> messages;  // of all workers
  const auto fill_in = [&](Proposal& mine) {
    std::vector<Slot> sliced;
    OptimizerDigest which;
    for (const Slot& slot : slots_) {
      which = which.with(uint64_t{slot.mirrored().is_sliced()});
      if (slot.mirrored().is_sliced()) sliced.push_back(slot);
    }
    groups = in_groups(sliced);
    int64_t bytes = 0;
    for (const auto& group : groups) bytes = std::max(bytes, group.size() > 1 ? bytes_of(group) : 0);
    messages.resize(static_cast<std::size_t>(bytes));  // where one worker has no memory, all learn it here
    mine.signature = which.value();
    mine.detail = fmt::format("gather_slots of '{}', of whose {} slots {} are whole here", name_, slots_.size(),
                              slots_.size() - sliced.size());
  };
  agree_on_call(group_.rounds(), {.call = "Optimizer::gather_slots", .name = name_, .step = group_.step()}, fill_in);
  for (const auto& group : groups) {
    for (const Slot& slot : group) slot.mirrored().set_slicing(Slicing::kFilled);
    if (group.size() == 1) {
      exchange([&](int64_t worker) { return slice_of(group.front(), worker); });
    } else {
      exchange_together(group, messages);
    }
    for (const Slot& slot : group) slot.mirrored().set_slicing(Slicing::kGathered);
  }
}

std::span<std::byte> SlicedSlots::slice_of(const Slot& slot, int64_t worker) const {
  const Slice slice = slices_.of(slot.target, worker);
  auto* const memory = static_cast<std::byte*>(slot.state->copies().front().data_ptr());
  return {memory + slice.begin, static_cast<std::size_t>(slice.bytes)};
}

int64_t SlicedSlots::bytes_of(const std::vector<Slot>& slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot.state->bytes();
  return bytes;
}

template <class Part>
void SlicedSlots::exchange(const Part& part_of) const {
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(slices_.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    to[static_cast<std::size_t>(w)] = part_of(worker_);
    from[static_cast<std::size_t>(w)] = part_of(w);
  }
  group_.rounds().exchange(to, from);
}

void SlicedSlots::exchange_together(const std::vector<Slot>& slots, std::span<std::byte> messages) const {
  // One message after another, and in each the worker's slices.
  std::vector<std::span<std::byte>> parts;
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    std::size_t bytes = 0;
    for (const Slot& slot : slots) bytes += slice_of(slot, w).size();
    parts.push_back(messages.first(bytes));
    messages = messages.subspan(bytes);
  }
  const auto part_of = [&](int64_t worker) { return parts[static_cast<std::size_t>(worker)]; };
  std::byte* packed = part_of(worker_).data();
  for (const Slot& slot : slots) packed = std::ranges::copy(slice_of(slot, worker_), packed).out;
  exchange(part_of);
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    const std::byte* arrived = part_of(w).data();
    for (const Slot& slot : slots) {
      const std::span<std::byte> slice = slice_of(slot, w);
      std::copy_n(arrived, slice.size(), slice.begin());
      arrived += slice.size();
    }
  }
}

}  // namespace lockstep::internal
