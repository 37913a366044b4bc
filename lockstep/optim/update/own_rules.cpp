#include "lockstep/optim/update/own_rules.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/replica/pool/compute_settings.h"

namespace lockstep::internal::inline optim {

namespace {

int64_t size_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

/// What a rule computes under, whatever the program has set on this thread.
class RuleScope {
 public:
  RuleScope() { ensure_intra_op_threads_of_this_thread(1); }
  ~RuleScope() { ensure_intra_op_threads_of_this_thread(threads_); }
  RuleScope(const RuleScope&) = delete;
  RuleScope& operator=(const RuleScope&) = delete;

 private:
  const int threads_ = at::get_num_threads();
  const c10::InferenceMode normal_{false};
  const at::NoGradGuard no_grad_;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace

OwnRules::OwnRules(const BoundUpdate& update) : lanes_(static_cast<std::size_t>(update.plan().lanes().count)) {
  const c10::InferenceMode normal(false);  // a rule writes them
  std::size_t largest = 0;
  for (std::size_t i = 0; i < update.owners().size(); ++i) {
    if (!update.owners()[i].own_rule) continue;
    trials_.resize(update.owners().size());
    digests_.resize(static_cast<std::size_t>(update.plan().num_blocks()));
    const PlannedTarget& target = update.plan().targets()[i];
    const int64_t numbers = target.bytes / size_of(target.type);
    const at::ScalarType type = target.type == at::kDouble ? at::kDouble : at::kFloat;
    Trial& trial = trials_[i].emplace();
    trial.weights = at::empty({numbers}, at::TensorOptions(type));
    for (int s = 0; s < target.slots; ++s) trial.slots.push_back(at::empty_like(trial.weights));
    for (const at::Tensor& slot : trial.slots) trial.slot_memory.push_back(slot.data_ptr());
    const int64_t together = target.together ? numbers : kBlockBytes / size_of(target.type);
    largest = std::max(largest, static_cast<std::size_t>(together * size_of(type)));
  }
  for (Lane& lane : lanes_) lane.gradient.resize(largest);
}

template <class Visit>
void OwnRules::for_each_call(const BoundUpdate& update, int lane, const Visit& visit) const {
  update.plan().for_each_range(lane, [&](const BlockRange& blocks) {
    if (!trials_[blocks.target] || !update.present(blocks.target)) return;
    if (update.plan().targets()[blocks.target].together) return visit(blocks);
    for (int64_t block = blocks.first; block < blocks.end; ++block) visit({blocks.target, block, block + 1});
  });
}

void OwnRules::call(BoundUpdate& update, UpdateKernels& kernels, const UpdatePass& pass, int lane, bool digests) {
  std::exception_ptr& error = lanes_[static_cast<std::size_t>(lane)].error;
  error = nullptr;
  try {
    const RuleScope scope;
    kernels.begin_loads(lane);
    for_each_call(update, lane,
                  [&](const BlockRange& blocks) { call_one(update, kernels, pass, lane, digests, blocks); });
  } catch (...) {
    error = std::current_exception();
  }
}

void OwnRules::require_no_error() const {
  for (const Lane& lane : lanes_) {
    if (lane.error) std::rethrow_exception(lane.error);
  }
}

void OwnRules::call_one(BoundUpdate& update, UpdateKernels& kernels, const UpdatePass& pass, int lane, bool digests,
                        const BlockRange& blocks) {
  const BoundTarget& target = update.targets()[blocks.target];
  const UpdateTarget& owner = update.owners()[blocks.target];
  Trial& trial = *trials_[blocks.target];
  std::vector<char>& gradient = lanes_[static_cast<std::size_t>(lane)].gradient;
  kernels.load(update, pass, lane, blocks, trial.memory(gradient.data()));

  const int64_t size = size_of(target.planned.type);
  const int64_t first = blocks.first * kBlockBytes / size;
  const int64_t count = std::min(blocks.end * kBlockBytes, target.planned.bytes) / size - first;
  const at::Tensor like = owner.variable->numbers();
  const auto shaped = [&](const at::Tensor& flat) {
    return target.planned.together ? flat.as_strided(like.sizes(), like.strides()) : flat;
  };
  RuleInput in;
  in.weights = shaped(trial.weights.narrow(0, first, count));
  for (const at::Tensor& slot : trial.slots) in.slots.push_back(shaped(slot.narrow(0, first, count)));
  in.gradient = shaped(at::from_blob(gradient.data(), {count}, trial.weights.options()));
  in.step = static_cast<int64_t>(target.coefficients->step);
  in.learning_rate = target.coefficients->learning_rate;
  const auto where = [&] {
    std::vector<const void*> addresses{in.weights.data_ptr()};
    for (const at::Tensor& slot : in.slots) addresses.push_back(slot.data_ptr());
    return addresses;
  };
  const auto before = where();
  owner.own_rule->update(in);
  if (where() != before) {
    throw UsageError("LS-OPTION",
                     fmt::format("rule '{}' replaced the memory of the weights or slots of '{}'",
                                 owner.own_rule->name(), owner.variable->name()),
                     "write them in place: weights.copy_(new_values)");
  }
  if (!digests) return;
  const auto number = static_cast<uint64_t>(target.planned.first_block + blocks.end - 1);
  uint64_t digest = number;
  const auto add = [&](const at::Tensor& values) {
    const std::span<const std::byte> mine = host_bytes(values.narrow(0, first, count));
    digest = XXH3_64bits_withSeed(mine.data(), mine.size(), digest);
  };
  add(trial.weights);
  for (const at::Tensor& slot : trial.slots) add(slot);
  digests_[number] = digest;
}

uint64_t OwnRules::digest(const BoundUpdate& update, std::size_t i) const {
  if (is_empty() || !trials_[i] || !update.present(i)) return 0;
  const PlannedTarget& target = update.plan().targets()[i];
  const auto begin = digests_.begin() + target.first_block;
  return std::accumulate(begin, begin + target.blocks(), uint64_t{0});
}

void OwnRules::store(BoundUpdate& update, UpdateKernels& kernels, int lane, const PlaceOfBlock* place) const {
  if (is_empty()) return;
  for_each_call(update, lane, [&](const BlockRange& blocks) {
    kernels.store(update, lane, blocks, trials_[blocks.target]->memory(nullptr), place);
  });
}

}  // namespace lockstep::internal::optim
