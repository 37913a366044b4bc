#include "lockstep/optim/sliced_slots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/memory/lazy_zeros.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

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
        at::from_blob(slot.memory() + own.begin, {own.bytes / size}, all.options()).fill_(initial[i][s]);
      }
      slot.mirrored().set_sliced();
    }
  }
}

void SlicedSlots::slice() {
  for (const Slot& slot : slots_) {
    if (!slot.mirrored().is_filled()) continue;
    const Slice own = slices_.of(slot.target, worker_);
    const at::Tensor& all = slot.state->copies().front();
    clear_lazily(all, 0, own.begin);
    clear_lazily(all, own.end(), slot.state->bytes() - own.end());
    slot.mirrored().set_sliced();
  }
}

template <class Visit>
void SlicedSlots::for_each_slice(std::size_t first, std::size_t end, int64_t worker, const Visit& visit) const {
  int64_t place = 0;
  for (std::size_t s = first; s < end; ++s) {
    const Slice slice = slices_.of(slots_[s].target, worker);
    visit(slots_[s], slice, std::exchange(place, place + slice.bytes));
  }
}

void SlicedSlots::gather() {
  constexpr int64_t kTogether = int64_t{16} << 20;  // bytes of slots, about
  const auto is_sliced = [](const Slot& slot) { return slot.mirrored().is_sliced(); };
  const auto fill_in = [&](Proposal& mine) {
    mine.signature = static_cast<uint64_t>(std::count_if(slots_.begin(), slots_.end(), is_sliced));
    mine.detail = "the slots of '" + name_ + "'";
  };
  agree_on_call(group_.rounds(), {.call = "Optimizer::gather_slots", .name = name_, .step = group_.step()}, fill_in);
  if (std::none_of(slots_.begin(), slots_.end(), is_sliced)) return;
  for (const Slot& slot : slots_) slot.mirrored().set_filled();
  for (std::size_t first = 0; first < slots_.size();) {
    std::size_t end = first;
    for (int64_t bytes = 0; end < slots_.size() && (end == first || bytes < kTogether); ++end) {
      bytes += slots_[end].state->bytes();
    }
    if (end - first == 1) {
      exchange_in_place(slots_[first]);
    } else {
      exchange(first, end);
    }
    first = end;
  }
  for (const Slot& slot : slots_) slot.mirrored().set_whole();
}

void SlicedSlots::exchange_in_place(const Slot& slot) {
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(slices_.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  const auto bytes_of = [&](int64_t worker) {
    const Slice slice = slices_.of(slot.target, worker);
    return std::span(reinterpret_cast<std::byte*>(slot.memory()) + slice.begin, static_cast<std::size_t>(slice.bytes));
  };
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    to[static_cast<std::size_t>(w)] = bytes_of(worker_);
    from[static_cast<std::size_t>(w)] = bytes_of(w);
  }
  group_.rounds().exchange(to, from);
}

void SlicedSlots::exchange(std::size_t first, std::size_t end) {
  const auto workers = static_cast<std::size_t>(slices_.num_workers());
  std::vector<std::vector<std::byte>> messages(workers);
  std::vector<std::span<const std::byte>> to(workers);
  std::vector<std::span<std::byte>> from(workers);
  for (std::size_t w = 0; w < workers; ++w) {
    int64_t bytes = 0;
    for_each_slice(first, end, static_cast<int64_t>(w),
                   [&](const Slot&, Slice slice, int64_t) { bytes += slice.bytes; });
    messages[w].resize(static_cast<std::size_t>(bytes));
  }
  const auto own = static_cast<std::size_t>(worker_);
  for_each_slice(first, end, worker_, [&](const Slot& slot, Slice slice, int64_t place) {
    std::memcpy(messages[own].data() + place, slot.memory() + slice.begin, static_cast<std::size_t>(slice.bytes));
  });
  for (std::size_t w = 0; w < workers; ++w) {
    if (w == own) continue;
    to[w] = messages[own];
    from[w] = messages[w];
  }
  group_.rounds().exchange(to, from);
  for (std::size_t w = 0; w < workers; ++w) {
    if (w == own) continue;
    for_each_slice(first, end, static_cast<int64_t>(w), [&](const Slot& slot, Slice slice, int64_t place) {
      std::memcpy(slot.memory() + slice.begin, messages[w].data() + place, static_cast<std::size_t>(slice.bytes));
    });
  }
}

}  // namespace lockstep::internal
