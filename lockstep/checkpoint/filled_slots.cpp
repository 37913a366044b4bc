#include "lockstep/checkpoint/filled_slots.h"

#include <map>
#include <string>

#include "lockstep/checkpoint/take_image.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline checkpoint {

namespace {

/// The bytes of each slot that a writer writes. Its pieces of one tensor are neighbours.
std::map<std::string, Slice> slots_in(const WritePlan& plan, const Share& share) {
  std::map<std::string, Slice> slots;
  for (std::size_t p = share.begin; p < share.end; ++p) {
    const PlannedPiece& piece = plan.pieces[p];
    const RecordedTensor& tensor = plan.tensors[piece.tensor].recorded;
    if (tensor.kind != kind_text(StateItem::Kind::kSlot)) continue;
    Slice& slice = slots.try_emplace(tensor.name, Slice{static_cast<int64_t>(piece.begin), 0}).first->second;
    slice.bytes += static_cast<int64_t>(piece.bytes);
  }
  return slots;
}

}  // namespace

FilledSlots::FilledSlots(const Strategy& strategy) : slots_(StrategyAccess::sliced_slots(strategy)) {}

FilledSlots::FilledSlots(const Strategy& strategy, const WritePlan& plan, const std::vector<int64_t>& writers)
    : FilledSlots(strategy) {
  if (slots_.empty()) return;
  std::map<int64_t, std::map<std::string, Slice>> of_writer;
  for (std::size_t k = 0; k < writers.size(); ++k) {
    const Share share = share_of(plan, static_cast<int64_t>(k), static_cast<int64_t>(writers.size()));
    of_writer[writers[k]] = slots_in(plan, share);
  }
  for (const auto& slots : slots_) {
    const std::vector<SlicedSlots::Own> all = slots->own();
    SlicedSlots::Wanted wanted(static_cast<std::size_t>(strategy.num_workers()), std::vector<Slice>(all.size()));
    for (const auto& [writer, of_name] : of_writer) {
      for (std::size_t s = 0; s < all.size(); ++s) {
        const auto found = of_name.find(all[s].name);
        if (found != of_name.end()) wanted[static_cast<std::size_t>(writer)][s] = found->second;
      }
    }
    slots->fill(wanted);
  }
}

FilledSlots::~FilledSlots() {
  for (const auto& slots : slots_) slots->drop_filled();
}

}  // namespace lockstep::internal::checkpoint
