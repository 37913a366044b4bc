#include "lockstep/checkpoint/restored_slices.h"

#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal {

RestoredSlices::RestoredSlices(const Strategy& strategy, const Tracked& tracked) {
  if (!tracked.values.empty()) return;
  for (const auto& slots : StrategyAccess::sliced_slots(strategy)) {
    for (auto& [name, own] : slots->own()) {
      // A checkpoint has the bytes in row-major order.
      if (own.memory.is_contiguous()) slots_.emplace(name, Own{slots, own});
    }
  }
}

ByteRange RestoredSlices::needed(const RecordedTensor& saved, const TensorPlace& place) const {
  const auto found =
      saved.kind == kind_text(StateItem::Kind::kSlot) && saved.replica < 0 ? slots_.find(saved.name) : slots_.end();
  if (found == slots_.end()) return {};
  const auto& [slice, memory] = found->second.own;
  // One that does not fit is refused later, by what the whole of it is.
  if (saved.dtype != dtype_name(memory.scalar_type()) || at::IntArrayRef(place.shape) != memory.sizes()) return {};
  return {static_cast<uint64_t>(slice.begin), static_cast<uint64_t>(slice.end())};
}

bool RestoredSlices::write(const StateItem& item, const at::Tensor& value) const {
  const auto found = item.kind == StateItem::Kind::kSlot ? slots_.find(item.name) : slots_.end();
  if (found == slots_.end()) return false;
  const auto& [slots, own] = found->second;
  if (value.scalar_type() != own.memory.scalar_type() || value.sizes() != own.memory.sizes()) return false;
  slots->write_own(item.name, value.contiguous());
  return true;
}

}  // namespace lockstep::internal
