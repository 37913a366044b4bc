#include "lockstep/checkpoint/filled_slots.h"

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/checkpoint/capture.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/checkpoint/write_plan.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal {

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

FilledSlots::FilledSlots(const Strategy& strategy, const Image& image, const std::vector<int64_t>& writers)
    : slots_(StrategyAccess::sliced_slots(strategy)) {
  if (slots_.empty()) return;
  std::vector<std::map<std::string, Slice>> of_worker(static_cast<std::size_t>(strategy.num_workers()));
  all_or_none(strategy, "Checkpoint::save", [&] {
    const WritePlan plan = plan_of(image);
    for (std::size_t k = 0; k < writers.size(); ++k) {
      const Share share = share_of(plan, static_cast<int64_t>(k), static_cast<int64_t>(writers.size()));
      of_worker[static_cast<std::size_t>(writers[k])] = slots_in(plan, share);
    }
  });
  const auto wanted = [&](int64_t worker, const std::string& name) {
    const auto& slots = of_worker[static_cast<std::size_t>(worker)];
    const auto found = slots.find(name);
    return found == slots.end() ? Slice() : found->second;
  };
  for (const auto& slots : slots_) slots->fill(wanted);
}

FilledSlots::~FilledSlots() {
  for (const auto& slots : slots_) slots->drop_filled();
}

}  // namespace lockstep::internal
