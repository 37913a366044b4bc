// Rules of the program's own in an update, and limits on elements. Order of events in a step: call_rules() gives each
// rule copies of the old values and the clipped gradients; where no rule of any lane or worker has thrown, the update
// takes the new values from there. Elementwise rules are called for each block; others for the whole variable, when the
// sum of its last block is there.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

namespace {

int64_t size_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

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

void FusedUpdate::expect_limit() {
  for (LaneWork& work : lanes_) work.clipped.resize(std::max<std::size_t>(work.clipped.size(), kBlockBytes));
}

void FusedUpdate::make_trials() {
  const c10::InferenceMode normal(false);  // a rule writes them
  std::size_t largest = 0;
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const UpdateTarget& owner = owners_[i];
    if (!owner.own_rule) continue;
    if (trials_.empty()) {
      trials_.resize(owners_.size());
      rule_digests_.resize(static_cast<std::size_t>(shares_.num_blocks()));
    }
    const int64_t numbers = targets_[i].bytes / size_of(targets_[i].type);
    const at::ScalarType type = targets_[i].type == at::kDouble ? at::kDouble : at::kFloat;
    const auto memory = [&] { return at::empty({numbers}, at::TensorOptions(type)); };
    Trial& trial = trials_[i].emplace(Trial{memory(), {}, !owner.own_rule->elementwise()});
    for (std::size_t s = 0; s < owner.slots.size(); ++s) trial.slots.push_back(memory());
    const int64_t together = trial.is_whole ? numbers : kBlockBytes / size_of(targets_[i].type);
    largest = std::max(largest, static_cast<std::size_t>(together * size_of(type)));
  }
  for (LaneWork& work : lanes_) work.clipped.resize(largest);
}

void FusedUpdate::call_rules(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured,
                             bool digests) {
  lanes_[lane].is_measured = is_measured;
  lanes_[lane].rule_error = nullptr;
  try {
    const RuleScope scope;
    run(gradients, lane, {.calls_rules = true, .digests = digests, .clip = clip});
  } catch (...) {
    lanes_[lane].rule_error = std::current_exception();
  }
}

void FusedUpdate::require_rules() const {
  for (const LaneWork& work : lanes_) {
    if (work.rule_error) std::rethrow_exception(work.rule_error);
  }
}

void FusedUpdate::call_rule(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass) {
  with_types(targets_[i].type,
             [&]<class Stored, class T>(Stored, T) { call_rule<T, Stored>(gradients, lane, i, block, pass); });
}

template <class T, class Stored>
void FusedUpdate::call_rule(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass) {
  const Target& target = targets_[i];
  const UpdateTarget& owner = owners_[i];
  Trial& trial = *trials_[i];
  LaneWork& work = lanes_[lane];
  constexpr int64_t kElements = kBlockBytes / static_cast<int64_t>(sizeof(Stored));
  const int64_t numbers = target.bytes / static_cast<int64_t>(sizeof(Stored));
  const int64_t offset = block * kElements;
  const int64_t end = std::min(offset + kElements, numbers);
  T* const clipped = reinterpret_cast<T*>(work.clipped.data()) + (trial.is_whole ? offset : 0);
  double squares = 0;
  if constexpr (std::is_same_v<T, Stored>) {
    squares = write_clipped(sum<T>(gradients, lane, i, offset, end - offset), end - offset, pass.clip, clipped);
  } else {
    for (int64_t first = offset; first < end; first += kSumBlock) {
      const int64_t count = std::min(kSumBlock, end - first);
      auto* buffer = reinterpret_cast<float*>(work.converted.data());
      squares += write_clipped(wide_sum<Stored>(gradients, lane, i, first, count, buffer), count, pass.clip,
                               clipped + (first - offset));
    }
  }
  if (!work.is_measured) square(target.first_block + block) = squares;
  if (trial.is_whole && end < numbers) return;

  const int64_t first = trial.is_whole ? 0 : offset;
  const int64_t count = end - first;
  const at::Tensor& like = owner.variable->numbers();
  const auto shaped = [&](const at::Tensor& flat) {
    return trial.is_whole ? flat.as_strided(like.sizes(), like.strides()) : flat.narrow(0, first, count);
  };
  const auto copy = [&](const void* from, const at::Tensor& to) {
    std::copy_n(static_cast<const Stored*>(from) + first, count, static_cast<T*>(to.data_ptr()) + first);
  };
  RuleInput in;
  copy(target.weights, trial.weights);
  in.weights = shaped(trial.weights);
  const int64_t r = is_shared_ ? 0 : replicas_.first;
  for (std::size_t s = 0; s < trial.slots.size(); ++s) {
    copy(memory_of(owner.slots[s]->memory(r)), trial.slots[s]);
    in.slots.push_back(shaped(trial.slots[s]));
  }
  const at::Tensor flat = at::from_blob(work.clipped.data(), {count}, at::TensorOptions(trial.weights.scalar_type()));
  in.gradient = trial.is_whole ? flat.as_strided(like.sizes(), like.strides()) : flat;
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
  if (!pass.digests) return;
  const auto number = static_cast<uint64_t>(target.first_block + block);
  uint64_t digest = number;
  const auto add = [&](const at::Tensor& values) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    digest = XXH3_64bits_withSeed(static_cast<const T*>(address_of(values)) + first, bytes, digest);
  };
  add(trial.weights);
  for (const at::Tensor& slot : trial.slots) add(slot);
  rule_digests_[number] = digest;
}

uint64_t FusedUpdate::digest_of_rule(std::size_t i) const {
  if (!present(i) || targets_[i].kind != UpdateKind::kOwn) return 0;
  const auto begin = rule_digests_.begin() + targets_[i].first_block;
  return std::accumulate(begin, begin + blocks_of(targets_[i].bytes), uint64_t{0});
}

uint64_t FusedUpdate::digest_of_rules() const {
  uint64_t sum = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) sum += digest_of_rule(i);
  return sum;
}

void FusedUpdate::take_trial(int lane, std::size_t i, int64_t block, const Pass& pass) {
  const Target& target = targets_[i];
  const UpdateTarget& owner = owners_[i];
  const Trial& trial = *trials_[i];
  const int64_t begin = block * kBlockBytes;
  const int64_t bytes = std::min(kBlockBytes, target.bytes - begin);
  const auto take = [&](const at::Tensor& from, char* to) {
    with_types(target.type, [&]<class Stored, class T>(Stored, T) {
      const int64_t size = sizeof(Stored);
      const T* const values = static_cast<const T*>(from.data_ptr()) + begin / size;
      std::copy_n(values, bytes / size, reinterpret_cast<Stored*>(to));
    });
  };
  const uint64_t read = checksum(target.weights + begin, bytes);
  if (pass.prepared) {
    take(trial.weights, (*pass.prepared)(i, begin));
    return compare_and_copy(lane, i, block, read, nullptr);
  }
  take(trial.weights, target.new_weights + begin);
  for (std::size_t s = 0; s < trial.slots.size(); ++s) {
    VariableState& slot = *owner.slots[s];
    char* const memory = is_shared_ ? reinterpret_cast<char*>(slot.as_mirrored().next_half().values)
                                    : memory_of(slot.memory(replicas_.first));
    take(trial.slots[s], memory + begin);
  }
  const uint64_t written = checksum(target.new_weights + begin, bytes);
  compare_and_copy(lane, i, block, read, &written);
}

}  // namespace lockstep::internal::optim
