#include "lockstep/gradient/gradient_watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline gradient {

namespace {

constexpr int64_t kFirstSteps = 8;
constexpr int64_t kEvery = 256;
constexpr int64_t kSampleBytes = 256;
constexpr std::size_t kMostPasses = 16;
constexpr double kMostWeight = 1.5;  // 1 is right; a program may guess the whole before it knows it

/// The checksum of a gradient's first bytes, as if it were in memory.
uint64_t sample_of(const Factors& factors) {
  const int64_t row_bytes = factors.columns() * int64_t{sizeof(float)};
  const int64_t rows = std::min(factors.rows(), (kSampleBytes + row_bytes - 1) / row_bytes);
  return checksum(host_bytes(factors.first_rows(rows)).data(), std::min(factors.rows() * row_bytes, kSampleBytes));
}

/// Whether both have the weight of a whole batch over all replicas, which one of them should have alone.
bool is_one_too_many(const LossPass& first, const LossPass& last) {
  const auto is_whole = [](const LossPass& pass) {
    return pass.is_of_batch && pass.weight > 0 && pass.graph.kind != 0 && !pass.graph.is_multiplied;
  };
  if (!is_whole(first) || !is_whole(last) || first.graph.kind != last.graph.kind) return false;
  return first.step != last.step || (first.graph.is_of_fewer_rows && last.graph.is_of_fewer_rows);
}

bool is_watched(int64_t step) { return step < kFirstSteps || step % kEvery == 0; }

}  // namespace

GradientWatch::GradientWatch(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas, bool watches)
    : variables_(std::move(variables)), watches_(watches), replicas_(static_cast<std::size_t>(replicas)) {
  for (int64_t r = 0; watches && r < replicas; ++r) begin(r);
}

GradientWatch::~GradientWatch() {
  for (OfReplica& replica : replicas_) {
    if (replica.left) replica.losses->end_look();
  }
}

uint64_t GradientWatch::Record::bytes() const { return factors ? sample_of(*factors) : sample; }

GradientWatch::Record GradientWatch::record_of(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.device().is_cpu()) return {};
  const c10::TensorImpl* const impl = gradient.unsafeGetTensorImpl();
  Record record{.gradient = std::make_optional(c10::weak_intrusive_ptr(gradient.getIntrusivePtr())),
                .version = static_cast<uint32_t>(impl->version_counter().current_version())};
  record.factors = factors_of(gradient);
  if (record.factors) return record;
  const std::span<const std::byte> bytes = host_bytes(gradient);
  if (bytes.data() && gradient.is_non_overlapping_and_dense())
    record.sample = checksum(bytes.data(), std::min(static_cast<int64_t>(bytes.size()), kSampleBytes));
  return record;
}

bool GradientWatch::is_same_tensor(const Record& record, const at::Tensor& gradient) {
  return record.gradient && record.gradient->_unsafe_get_target() == gradient.unsafeGetTensorImpl();
}

void GradientWatch::Left::note(std::size_t i, const at::Tensor& gradient, const ScaledLosses& losses) {
  Record record = record_of(gradient);
  record.is_of_backward = true;
  const Record& before = records[i];
  const LossPass* const loss = losses.under_way();
  // A backward adds to a gradient in place, once. What was dropped or set to zero in between has nothing of the passes
  // before.
  const bool goes_on = is_same_tensor(before, gradient) && record.version == before.version + 1;
  if (before.is_of_backward && !goes_on)
    std::erase_if(passes, [&](const Pass& pass) { return !loss || pass.loss.number != loss->number; });
  may_be_weighed = may_be_weighed || loss || losses.asked_for_counts();
  if (loss) {
    if ((passes.empty() || passes.back().loss.number != loss->number) && passes.size() < kMostPasses)
      passes.emplace_back();
    Pass& pass = passes.back();
    if (pass.loss.number == 0 || pass.loss.number == loss->number) {
      pass.loss = *loss;
      pass.variables += checksum(&i, sizeof(i));
    }
  }
  records[i] = std::move(record);
}

void GradientWatch::begin(int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  replica.left = std::make_shared<Left>();
  replica.left->records.resize(variables_.size());
  replica.losses = ContextAccess::losses(variables_.front()->group()->context(r));
  replica.losses->begin_look();
  replica.hooks.begin(variables_, r,
                      [left = replica.left, losses = replica.losses](std::size_t i, const at::Tensor& gradient) {
                        left->note(i, gradient, *losses);
                      });
}

std::optional<std::size_t> GradientWatch::changed(int64_t r) const {
  const OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  if (!replica.left) return std::nullopt;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Record& left = replica.left->records[i];
    const at::Tensor& gradient = variables_[i]->component(r).unsafeGetTensorImpl()->grad();
    if (!left.gradient || !gradient.defined()) continue;  // set by hand where no backward was, or dropped
    const Record now = record_of(gradient);
    const bool is_same = is_same_tensor(left, gradient);
    if (is_same && now.version != left.version) return i;
    if (is_same && now.factors) {  // a sum of factors is other factors
      if (now.factors != left.factors) return i;
      continue;
    }
    if (is_same || now.gradient) {  // another tensor may have the same values: a clone(), or what to() has given back
      if (now.bytes() != left.bytes()) return i;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> GradientWatch::unweighed(int64_t r) const {
  const OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  if (!replica.left || replica.left->may_be_weighed) return std::nullopt;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!replica.left->records[i].is_of_backward) continue;
    if (variables_[i]->component(r).unsafeGetTensorImpl()->grad().defined()) return i;
  }
  return std::nullopt;
}

bool GradientWatch::any_may_be_weighed() const {
  return std::ranges::any_of(replicas_, [](const OfReplica& one) { return one.left && one.left->may_be_weighed; });
}

std::optional<GradientWatch::AddedUp> GradientWatch::added_up() const {
  double weight = 0;  // of losses with counts of the program's own, over the local replicas
  for (const OfReplica& replica : replicas_) {
    if (!replica.left) continue;
    const std::vector<Pass>& passes = replica.left->passes;
    for (std::size_t last = 1; last < passes.size(); ++last) {
      for (std::size_t first = 0; first < last; ++first) {
        if (passes[first].variables != passes[last].variables) continue;
        if (is_one_too_many(passes[first].loss, passes[last].loss)) return {{passes[first].loss, passes[last].loss}};
      }
    }
    weight += weight_over_steps(passes);
    if (weight > kMostWeight) return {{passes.front().loss, passes.back().loss}};
  }
  return std::nullopt;
}

double GradientWatch::weight_over_steps(const std::vector<Pass>& passes) {
  double sum = 0;
  int64_t steps = 0;
  int64_t last_step = -1;
  for (const Pass& pass : passes) {
    const LossPass& loss = pass.loss;
    if (loss.is_of_batch || loss.weight == 1 || loss.graph.is_multiplied) return 0;
    if (pass.variables != passes.front().variables || loss.graph.kind != passes.front().loss.graph.kind) continue;
    if (std::exchange(last_step, loss.step) == loss.step) continue;  // another term
    sum += loss.weight;
    ++steps;
  }
  return steps > 1 ? sum : 0;
}

void GradientWatch::end_step(int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  ++replica.steps;
  if (!watches_ || !is_watched(replica.steps)) {
    replica.hooks.end();
    if (replica.left) replica.losses->end_look();
    replica.left.reset();
  } else if (replica.left) {
    forget(r);
  } else {
    begin(r);
  }
}

void GradientWatch::forget(int64_t r) noexcept {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  if (!replica.left) return;
  std::fill(replica.left->records.begin(), replica.left->records.end(), Record());
  replica.left->passes.clear();
  replica.left->may_be_weighed = false;
}

}  // namespace lockstep::internal::gradient
