#include "lockstep/reduce/rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline reduce {

namespace {

/// Adds the rows of equal ids: `order` has the rows by id, those of one id in the order of the gradient.
template <class T>
void add_rows(const std::vector<int64_t>& order, const int64_t* ids, const T* from, int64_t width, T* to) {
  T* row = nullptr;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const T* const next = from + order[k] * width;
    if (k > 0 && ids[order[k]] == ids[order[k - 1]]) {
      for (int64_t j = 0; j < width; ++j) row[j] = row[j] + next[j];
      continue;
    }
    row = row ? row + width : to;
    if (width > 0) std::memcpy(row, next, static_cast<std::size_t>(width) * sizeof(T));
  }
}

}  // namespace

at::ScalarType type_of_rows(at::ScalarType numbers) { return numbers == at::kDouble ? at::kDouble : at::kFloat; }

bool is_of_rows(const at::Tensor& gradient) { return gradient.layout() == at::kSparse && gradient.sparse_dim() == 1; }

Rows coalesced(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor indices = gradient._indices().select(0, 0).contiguous();
  at::Tensor values = gradient._values().resolve_conj().resolve_neg();
  if (values.is_complex()) values = at::view_as_real(values);
  values = values.to(type_of_rows(values.scalar_type())).contiguous();
  const int64_t count = indices.numel();
  const int64_t* const ids = host_numbers<int64_t>(indices).data();
  for (int64_t k = 0; k < count; ++k) {
    if (ids[k] < 0 || ids[k] >= gradient.size(0)) throw std::out_of_range("a row that the gradient does not have");
  }
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t k) { return ids[k]; });
  Rows rows;
  for (const int64_t k : order) {
    if (rows.ids.empty() || rows.ids.back() != ids[k]) rows.ids.push_back(ids[k]);
  }
  const int64_t width = count == 0 ? 0 : values.numel() / count;
  rows.values = at::empty({rows.count(), width}, values.options());
  if (values.scalar_type() == at::kDouble) {
    add_rows(order, ids, host_numbers<double>(values).data(), width, host_numbers_to_write<double>(rows.values).data());
  } else {
    add_rows(order, ids, host_numbers<float>(values).data(), width, host_numbers_to_write<float>(rows.values).data());
  }
  return rows;
}

MergedRows merged(std::span<const std::span<const int64_t>> ids) {
  struct Entry {
    int64_t id;
    MergedRows::Part part;
  };
  std::vector<Entry> entries;
  for (std::size_t r = 0; r < ids.size(); ++r) {
    for (std::size_t k = 0; k < ids[r].size(); ++k)
      entries.push_back({ids[r][k], {static_cast<int64_t>(r), static_cast<int64_t>(k)}});
  }
  // Replicas come in ascending order, and a stable order keeps that.
  std::ranges::stable_sort(entries, {}, &Entry::id);
  MergedRows all;
  for (const Entry& one : entries) {
    if (all.ids.empty() || all.ids.back() != one.id) {
      all.ids.push_back(one.id);
      all.first.push_back(all.parts.size());
    }
    all.parts.push_back(one.part);
  }
  all.first.push_back(all.parts.size());
  return all;
}

}  // namespace lockstep::internal::reduce
