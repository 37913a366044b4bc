#include "lockstep/optim/gradient_watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/linear/factored_tensor.h"

namespace lockstep::internal {

namespace {

constexpr int64_t kFirstSteps = 8;
constexpr int64_t kEvery = 256;
constexpr int64_t kSampleBytes = 256;

/// The checksum of a gradient's first bytes, as if it were in memory.
uint64_t sample_of(const Factors& factors) {
  const int64_t row_bytes = factors.columns() * int64_t{sizeof(float)};
  const int64_t rows = std::min(factors.rows(), (kSampleBytes + row_bytes - 1) / row_bytes);
  return checksum(address_of(factors.first_rows(rows)), std::min(factors.rows() * row_bytes, kSampleBytes));
}

bool is_watched(int64_t step) { return step < kFirstSteps || step % kEvery == 0; }

}  // namespace

GradientWatch::GradientWatch(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas, bool watches)
    : variables_(std::move(variables)), watches_(watches), replicas_(static_cast<std::size_t>(replicas)) {
  for (int64_t r = 0; watches && r < replicas; ++r) begin(r);
}

GradientWatch::Record GradientWatch::record_of(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.device().is_cpu()) return {};
  const c10::TensorImpl* const impl = gradient.unsafeGetTensorImpl();
  Record record{.gradient = std::make_optional(c10::weak_intrusive_ptr(gradient.getIntrusivePtr())),
                .version = static_cast<uint32_t>(impl->version_counter().current_version())};
  record.factors = factors_of(gradient);
  if (record.factors) return record;
  const auto bytes = static_cast<int64_t>(gradient.nbytes());
  const void* const memory = address_of(gradient);
  if (memory && gradient.is_non_overlapping_and_dense())
    record.sample = checksum(memory, std::min(bytes, kSampleBytes));
  return record;
}

void GradientWatch::begin(int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  replica.records = std::make_shared<std::vector<Record>>(variables_.size());
  replica.hooks.begin(variables_, r, [records = replica.records](std::size_t i, const at::Tensor& gradient) {
    (*records)[i] = record_of(gradient);
  });
}

std::optional<std::size_t> GradientWatch::changed(int64_t r) const {
  const OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  if (!replica.records) return std::nullopt;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Record& left = (*replica.records)[i];
    const at::Tensor& gradient = variables_[i]->component(r).unsafeGetTensorImpl()->grad();
    if (!left.gradient || left.gradient->_unsafe_get_target() != gradient.unsafeGetTensorImpl())
      continue;  // was assigned by the program
    const Record now = record_of(gradient);
    if (now.version != left.version) return i;
    if (now.factors) {  // a sum of factors is other factors
      if (now.factors != left.factors) return i;
      continue;
    }
    const uint64_t sample = left.factors ? sample_of(*left.factors) : left.sample;
    if (now.sample != sample) return i;
  }
  return std::nullopt;
}

void GradientWatch::end_step(int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  ++replica.steps;
  if (!watches_ || !is_watched(replica.steps)) {
    replica.hooks.end();
    replica.records.reset();
  } else if (replica.records) {
    forget(r);
  } else {
    begin(r);
  }
}

void GradientWatch::forget(int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  if (replica.records) std::fill(replica.records->begin(), replica.records->end(), Record());
}

}  // namespace lockstep::internal
