#include "lockstep/reduce/factors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "lockstep/core/denormals.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline reduce {

namespace {

/// Packs [samples, size] into groups of `width`: [group][sample][width], with zeros behind the last one.
at::Tensor packed(const at::Tensor& factor, int64_t width) {
  const at::Tensor dense = factor.contiguous();
  const int64_t samples = dense.size(0);
  const int64_t size = dense.size(1);
  const int64_t groups = (size + width - 1) / width;
  at::Tensor result = at::empty({groups, samples, width}, dense.options());
  const float* const from = host_numbers<float>(dense).data();
  float* to = host_numbers_to_write<float>(result).data();
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * width;
    const int64_t count = std::min(width, size - begin);
    for (int64_t s = 0; s < samples; ++s, to += width) {
      std::memcpy(to, from + s * size + begin, static_cast<std::size_t>(count) * sizeof(float));
      std::fill(to + count, to + width, 0.0f);
    }
  }
  return result;
}

const float* values_of(const at::Tensor& tensor) { return host_numbers<float>(tensor).data(); }

/// The calling thread computes in `modes` while it lives.
class ModesGuard {
 public:
  explicit ModesGuard(uint32_t modes) : before_(floating_point_modes()) { set_floating_point_modes(modes); }
  ~ModesGuard() { set_floating_point_modes(before_); }
  ModesGuard(const ModesGuard&) = delete;
  ModesGuard& operator=(const ModesGuard&) = delete;

 private:
  const uint32_t before_;
};

}  // namespace

bool Factors::available() { return outer_product() != nullptr; }

Factors::Factors(const at::Tensor& left, const at::Tensor& right, ZeroSums zero_sums)
    : rows_(left.size(1)), columns_(right.size(1)), modes_(floating_point_modes()) {
  const at::NoGradGuard no_grad;
  terms_.push_back({left.size(0), zero_sums, packed(left.detach(), kLeftGroup), packed(right.detach(), kRightPanel)});
}

Factors::Factors(const Factors& first, const Term& last) : Factors(first) { terms_.push_back(last); }

std::shared_ptr<const Factors> Factors::sum(const Factors& a, const Factors& b) {
  if (a.modes_ != b.modes_) return nullptr;
  // The sum of two numbers has the same bits in both orders.
  if (b.terms_.size() == 1) return std::shared_ptr<const Factors>(new Factors(a, b.terms_.front()));
  if (a.terms_.size() == 1) return std::shared_ptr<const Factors>(new Factors(b, a.terms_.front()));
  return nullptr;
}

int64_t Factors::samples() const {
  int64_t all = 0;
  for (const Term& term : terms_) all += term.samples;
  return all;
}

void Factors::fill_rows(int64_t first, int64_t count, float* out) const {
  static const OuterProduct fill = outer_product();
  for (std::size_t t = 0; t < terms_.size(); ++t) {
    const Term& term = terms_[t];
    fill({.left = values_of(term.left),
          .right = values_of(term.right),
          .samples = term.samples,
          .columns = columns_,
          .first_row = first,
          .num_rows = count,
          .out = out,
          .add = t > 0,
          .zero_sums = term.zero_sums});
  }
}

at::Tensor Factors::first_rows(int64_t count) const {
  at::Tensor result = at::empty({count, columns_}, terms_.front().left.options());
  const ModesGuard own(modes_);
  fill_rows(0, count, host_numbers_to_write<float>(result).data());
  return result;
}

int64_t FactorBlocks::rows_for(int64_t count, int64_t columns) const {
  const int64_t needed = std::max((count + columns - 1) / columns, room_ / columns);
  return (needed + kLeftGroup - 1) / kLeftGroup * kLeftGroup;
}

void FactorBlocks::reserve(int64_t rows, int64_t columns, int64_t count) {
  // Before a block's elements are those of its group of rows, and as many elements as a block has may be kept.
  const int64_t made = std::min(rows_for(count + kLeftGroup * columns, columns), rows) * columns;
  values_.reserve(static_cast<std::size_t>(count + made));
}

const float* FactorBlocks::block(const Factors& factors, int64_t offset, int64_t count) {
  const int64_t columns = factors.columns();
  if (factors_ != &factors || offset < begin_ || offset > end_) {
    factors_ = &factors;
    begin_ = end_ = offset / columns / kLeftGroup * kLeftGroup * columns;
  }
  if (offset + count > end_) {
    const int64_t kept = end_ - std::min(offset, end_);
    if (kept > 0) {  // memory that is not there yet must not be given to memmove
      std::memmove(values_.data(), values_.data() + (end_ - kept - begin_),
                   static_cast<std::size_t>(kept) * sizeof(float));
    }
    begin_ = end_ - kept;
    const int64_t row = end_ / columns;
    const int64_t rows = std::min(rows_for(offset + count - end_, columns), factors.rows() - row);
    const auto size = static_cast<std::size_t>(kept + rows * columns);
    if (values_.size() < size) values_.resize(size);
    factors.fill_rows(row, rows, values_.data() + kept);
    end_ += rows * columns;
  }
  return values_.data() + (offset - begin_);
}

}  // namespace lockstep::internal::reduce
