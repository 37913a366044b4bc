#include "lockstep/optim/forms/sliced_slots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
#include "lockstep/memory/lazy_zeros.h"
#include "lockstep/optim/forms/compare_values.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

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
      const Slot& slot = slots_.emplace_back(Slot{targets[i].slots[s], i, slots_.size()});
      if (initial[i][s] != 0) {
        const Slice own = slices_.of(i, worker_);
        const at::Tensor& all = slot.state->numbers();
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
    clear_others(slot);
    slot.mirrored().set_slicing(Slicing::kSliced);
  }
}

void SlicedSlots::clear_others(const Slot& slot) const {
  const Slice own = slices_.of(slot.target, worker_);
  const at::Tensor& all = slot.state->copies().front();
  clear_lazily(all, 0, own.begin);
  clear_lazily(all, own.end(), slot.state->bytes() - own.end());
}

void SlicedSlots::compare_written() const {
  // Each worker keeps its own slices: where other workers had other values, nobody would find it later.
  const auto fill_in = [&](Proposal& mine) {
    for (const Slot& slot : slots_)
      mine.data += slot.mirrored().slicing() == Slicing::kWritten ? kWritten : kNotWritten;
  };
  const auto all =
      agree_on_call(group_.rounds(), {.call = "slots of an update", .name = name_, .step = group_.step()}, fill_in);
  for (std::size_t w = 0; w < all.size(); ++w) {
    MessageReader(all[w].data, static_cast<int64_t>(w), "which slots were written")
        .expect(all[w].data.size() == slots_.size());
  }
  std::vector<MirroredState*> written;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (all.front().data[s] == kWritten) written.push_back(&slots_[s].mirrored());
    for (std::size_t w = 1; w < all.size(); ++w) {
      if (all[w].data[s] == all.front().data[s]) continue;
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
  int64_t bytes = 0;  // of the last group
  for (const Slot& slot : slots) {
    if (groups.empty() || bytes + slot.state->bytes() > kTogether) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(slot);
    bytes += slot.state->bytes();
  }
  return groups;
}

void SlicedSlots::gather() {
  std::vector<Slice> all;
  for (const Slot& slot : slots_) all.push_back({0, slot.state->bytes()});
  const Wanted by_all(static_cast<std::size_t>(slices_.num_workers()), all);
  for (const Slot& slot : exchange_wanted("Optimizer::gather_slots", by_all))
    slot.mirrored().set_slicing(Slicing::kGathered);
}

std::vector<SlicedSlots::Own> SlicedSlots::own() const {
  std::vector<Own> all;
  for (const Slot& slot : slots_) {
    all.push_back({slot.state->name(), slot.state->copies().front(), slices_.of(slot.target, worker_),
                   slot.mirrored().is_sliced()});
  }
  return all;
}

void SlicedSlots::fill(const Wanted& wanted) { exchange_wanted("Checkpoint::save", wanted); }

void SlicedSlots::drop_filled() noexcept {
  for (const Slot& slot : slots_) {
    if (slot.mirrored().slicing() != Slicing::kFilled) continue;
    clear_others(slot);
    slot.mirrored().set_slicing(Slicing::kSliced);
  }
}

void SlicedSlots::write_own(std::size_t slot, const at::Tensor& value) {
  const Slot& one = slots_[slot];
  const Slice own = slices_.of(one.target, worker_);
  one.mirrored().write_bytes(
      own.begin, host_bytes(value).subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.bytes)));
  clear_others(one);
  one.mirrored().set_slicing(Slicing::kSliced);
}

std::vector<SlicedSlots::Slot> SlicedSlots::exchange_wanted(const char* call, const Wanted& wanted) {
  std::vector<Slot> sliced;
  std::vector<std::vector<Slot>> groups;
  std::vector<std::byte> messages;
  const auto fill_in = [&](Proposal& mine) {
    Digest which;
    for (const Slot& slot : slots_) {
      which = which.with(slot.mirrored().is_sliced());
      if (!slot.mirrored().is_sliced()) continue;
      sliced.push_back(slot);
      for (const std::vector<Slice>& of_worker : wanted) {
        const Slice part = of_worker[slot.place];
        which = which.with(part.begin).with(part.bytes);
      }
    }
    groups = in_groups(sliced);
    std::size_t bytes = 0;
    for (const auto& group : groups) bytes = std::max(bytes, group.size() > 1 ? bytes_of_messages(group, wanted) : 0);
    messages.resize(bytes);  // where one worker has no memory, all learn it here
    mine.signature = which.value();
    mine.detail = fmt::format("{} with the slots of '{}', of whose {} slots {} are whole here", call, name_,
                              slots_.size(), slots_.size() - sliced.size());
  };
  agree_on_call(group_.rounds(), {.call = call, .name = name_, .step = group_.step()}, fill_in);
  group_.rounds().or_end_run([&] {
    for (const auto& group : groups) {
      for (const Slot& slot : group) slot.mirrored().set_slicing(Slicing::kFilled);
      if (group.size() == 1) {
        exchange([&](int64_t from, int64_t to) { return part_of(group.front(), from, to, wanted); });
      } else {
        exchange_together(group, wanted, messages);
      }
    }
  });
  return sliced;
}

std::span<std::byte> SlicedSlots::slice_of(const Slot& slot, int64_t worker) const {
  const Slice slice = slices_.of(slot.target, worker);
  return host_bytes_to_write(slot.state->copies().front())
      .subspan(static_cast<std::size_t>(slice.begin), static_cast<std::size_t>(slice.bytes));
}

std::span<std::byte> SlicedSlots::part_of(const Slot& slot, int64_t from, int64_t to, const Wanted& wanted) const {
  const Slice has = slices_.of(slot.target, from);
  const Slice wants = wanted[static_cast<std::size_t>(to)][slot.place];
  const int64_t begin = std::max(has.begin, wants.begin);
  const int64_t end = std::min(has.end(), wants.end());
  if (begin >= end) return {};
  return slice_of(slot, from)
      .subspan(static_cast<std::size_t>(begin - has.begin), static_cast<std::size_t>(end - begin));
}

template <class Part>
void SlicedSlots::exchange(const Part& part) const {
  exchange_with_others(
      group_.rounds(), [&](int64_t w) { return part(worker_, w); }, [&](int64_t w) { return part(w, worker_); });
}

std::size_t SlicedSlots::bytes_of_messages(const std::vector<Slot>& slots, const Wanted& wanted) const {
  std::size_t bytes = 0;
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    for (const Slot& slot : slots)
      bytes += part_of(slot, worker_, w, wanted).size() + part_of(slot, w, worker_, wanted).size();
  }
  return bytes;
}

void SlicedSlots::exchange_together(const std::vector<Slot>& slots, const Wanted& wanted,
                                    std::span<std::byte> messages) const {
  // One message after another: to each worker the parts of all slots, and from each.
  std::vector<std::span<std::byte>> to(static_cast<std::size_t>(slices_.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  const auto message = [&](int64_t sender, int64_t receiver) {
    std::size_t bytes = 0;
    for (const Slot& slot : slots) bytes += part_of(slot, sender, receiver, wanted).size();
    const std::span<std::byte> first = messages.first(bytes);
    messages = messages.subspan(bytes);
    return first;
  };
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    const auto at = static_cast<std::size_t>(w);
    to[at] = message(worker_, w);
    std::byte* packed = to[at].data();
    for (const Slot& slot : slots) packed = std::ranges::copy(part_of(slot, worker_, w, wanted), packed).out;
    from[at] = message(w, worker_);
  }
  exchange([&](int64_t sender, int64_t receiver) {
    return sender == worker_ ? to[static_cast<std::size_t>(receiver)] : from[static_cast<std::size_t>(sender)];
  });
  for (int64_t w = 0; w < slices_.num_workers(); ++w) {
    if (w == worker_) continue;
    const std::byte* arrived = from[static_cast<std::size_t>(w)].data();
    for (const Slot& slot : slots) {
      const std::span<std::byte> part = part_of(slot, w, worker_, wanted);
      std::copy_n(arrived, part.size(), part.begin());
      arrived += part.size();
    }
  }
}

}  // namespace lockstep::internal::optim
