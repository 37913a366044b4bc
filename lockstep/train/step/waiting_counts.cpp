#include "lockstep/train/step/waiting_counts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline train {

bool WaitingNumbers::is_like_the_others(const at::Tensor& value) const {
  if (!value.defined() || !value.is_cpu() || !value.is_contiguous() || value.is_sparse() || !tensors_.empty())
    return false;
  return count_ == 0 || (value.scalar_type() == type_ && value.sizes() == sizes_);
}

at::Tensor WaitingNumbers::of_bytes(std::size_t first, std::size_t end) const {
  std::vector<int64_t> sizes = sizes_;
  if (end - first > 1) sizes.insert(sizes.begin(), static_cast<int64_t>(end - first));
  at::Tensor all = at::empty(sizes, type_);
  const auto to = host_bytes_to_write(all);
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(first * (bytes_.size() / count_)), to.size(), to.begin());
  return all;
}

void WaitingNumbers::add(const at::Tensor& value) {
  if (is_like_the_others(value)) {
    if (count_ == 0) {
      type_ = value.scalar_type();
      sizes_ = value.sizes().vec();
    }
    const auto from = host_bytes(value);
    bytes_.insert(bytes_.end(), from.begin(), from.end());
    ++count_;
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) tensors_.push_back(of_bytes(i, i + 1));
  bytes_.clear();
  count_ = 0;
  tensors_.push_back(value);
}

at::Tensor WaitingNumbers::stacked() const {
  if (count_ > 0) return of_bytes(0, count_);
  return tensors_.size() == 1 ? tensors_.front() : at::stack(tensors_);
}

void WaitingNumbers::clear() {
  bytes_.clear();
  count_ = 0;
  tensors_.clear();
}

void WaitingCounts::add(PerReplica<PartCounts> parts, int64_t samples) {
  first_ = parts.first_replica();
  samples_.push_back(samples);
  losses_.resize(static_cast<std::size_t>(parts.size()));
  sums_.resize(losses_.size());
  bool has_rows = false;
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    PartCounts& part = *(parts.begin() + static_cast<std::ptrdiff_t>(i));
    losses_[i].add(part.loss);
    if (part.sums.defined()) sums_[i].add(part.sums);
    has_rows =
        has_rows || std::any_of(part.rows.begin(), part.rows.end(), [](const auto& one) { return one.defined(); });
  }
  rows_.emplace_back();
  if (!has_rows) return;
  for (PartCounts& part : parts) rows_.back().push_back(std::move(part.rows));
}

void WaitingCounts::clear() {
  samples_.clear();
  rows_.clear();
  for (WaitingNumbers& one : losses_) one.clear();
  for (WaitingNumbers& one : sums_) one.clear();
}

at::Tensor WaitingCounts::rows(std::size_t step, ReplicaId r, std::size_t metric) const {
  return rows_[step].empty() ? at::Tensor() : rows_[step][index_of(r)][metric];
}

}  // namespace lockstep::internal::train
