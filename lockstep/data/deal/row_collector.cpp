#include "lockstep/data/deal/row_collector.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace lockstep::internal::inline data {

namespace {

/// Memory for `count` rows like the one that `row` has; undefined where rows cannot be copied byte by byte.
at::Tensor memory_for(int64_t count, const at::Tensor& row) {
  if (!row.defined() || !is_plain(row) || !row.is_contiguous()) return {};
  c10::DimVector sizes(row.sizes());
  sizes[0] = count;
  return at::empty(sizes, row.options());
}

bool fits(const at::Tensor& all, const at::Tensor& row) {
  if (!all.defined() || !row.defined()) return all.defined() == row.defined();
  return all.scalar_type() == row.scalar_type() && is_plain(row) && row.is_contiguous() && all.dim() == row.dim() &&
         std::equal(all.sizes().begin() + 1, all.sizes().end(), row.sizes().begin() + 1);
}

void copy_row(const at::Tensor& all, int64_t place, const at::Tensor& row) {
  if (!all.defined()) return;
  const std::size_t bytes = row.nbytes();
  if (bytes > 0)
    std::memcpy(static_cast<char*>(all.data_ptr()) + static_cast<std::size_t>(place) * bytes, row.data_ptr(), bytes);
}

}  // namespace

bool RowCollector::copy(int64_t place, const Batch& row) const {
  const bool all_fit =
      fits(all_.input, row.input) && fits(all_.target, row.target) && all_.more.size() == row.more.size() &&
      std::equal(all_.more.begin(), all_.more.end(), row.more.begin(),
                 [](const auto& a, const auto& b) { return a.first == b.first && fits(a.second, b.second); });
  if (!all_fit || !all_.input.defined()) return false;
  copy_row(all_.input, place, row.input);
  copy_row(all_.target, place, row.target);
  auto to = all_.more.begin();
  for (const auto& [name, tensor] : row.more) copy_row((to++)->second, place, tensor);
  return true;
}

void RowCollector::put(int64_t place, Batch row) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(begun_, true)) {
      all_.input = memory_for(count_, row.input);
      all_.target = memory_for(count_, row.target);
      for (const auto& [name, tensor] : row.more) all_.more[name] = memory_for(count_, tensor);
    }
  }
  if (copy(place, row)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  others_.emplace(place, std::move(row));
}

Batch RowCollector::take(const std::string& who, const SampleNames& names) {
  if (others_.empty()) return std::move(all_);
  std::vector<Batch> rows;
  for (int64_t place = 0; place < count_; ++place) {
    const auto other = others_.find(place);
    rows.push_back(other != others_.end() ? other->second : internal::rows_of(all_, place, 1));
  }
  return joined_rows(rows, who, names);
}

}  // namespace lockstep::internal::data
