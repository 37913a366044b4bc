#include "lockstep/checkpoint/restore/restored_slices.h"

#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline checkpoint {

RestoredSlices::RestoredSlices(const Strategy& strategy, const Tracked& tracked) {
  const auto all = StrategyAccess::sliced_slots(strategy);
  if (all.empty()) return;
  needs_whole_slots_ = !texts_of_all(strategy, tracked.values.empty() ? "" : "tracks values").empty();
  if (needs_whole_slots_) return;
  for (const auto& slots : all) {
    std::size_t place = 0;
    for (const SlicedSlots::Own& own : slots->own()) {
      // A checkpoint has the bytes in row-major order.
      if (own.memory.is_contiguous()) slots_.emplace(own.name, Place{slots, place, own});
      ++place;
    }
  }
}

ByteRange RestoredSlices::needed(const RecordedTensor& saved, const TensorPlace& place) const {
  const bool is_slot = saved.kind == kind_text(StateItem::Kind::kSlot) && saved.replica < 0;
  const auto found = is_slot ? slots_.find(saved.name) : slots_.end();
  if (found == slots_.end()) return {};
  const SlicedSlots::Own& own = found->second.own;
  // One that does not fit is refused later, by what the whole of it is.
  if (saved.dtype != dtype_name(own.memory.scalar_type()) || at::IntArrayRef(place.shape) != own.memory.sizes())
    return {};
  return {static_cast<uint64_t>(own.slice.begin), static_cast<uint64_t>(own.slice.end())};
}

bool RestoredSlices::write(const StateItem& item, const at::Tensor& value) const {
  const auto found = item.kind == StateItem::Kind::kSlot ? slots_.find(item.name) : slots_.end();
  if (found == slots_.end()) return false;
  found->second.slots->write_own(found->second.place, value.contiguous());
  return true;
}

}  // namespace lockstep::internal::checkpoint
