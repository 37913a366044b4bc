// Gradients of rows of which some come several times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace lockstep::internal::inline server {

/// Distinct rows in ascending order, and what was added up for each.
template <class T>
struct RowSums {
  std::vector<int64_t> ids;
  std::vector<T> values;  // `width` for each id
};

/// Whether no row comes twice, and all are in ascending order.
inline bool are_ascending(std::span<const int64_t> ids) {
  return std::ranges::adjacent_find(ids, std::ranges::greater_equal()) == ids.end();
}

/// The rows of one id are added one after another, in the order in which they stand.
template <class T>
RowSums<T> summed_rows(std::span<const int64_t> ids, const T* values, int64_t width) {
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t k) { return ids[k]; });
  RowSums<T> sums;
  sums.values.reserve(ids.size() * static_cast<std::size_t>(width));
  for (const std::size_t k : order) {
    const T* const row = values + static_cast<int64_t>(k) * width;
    if (sums.ids.empty() || sums.ids.back() != ids[k]) {
      sums.ids.push_back(ids[k]);
      sums.values.insert(sums.values.end(), row, row + width);
      continue;
    }
    T* const sum = sums.values.data() + sums.values.size() - static_cast<std::size_t>(width);
    for (int64_t i = 0; i < width; ++i) sum[i] += row[i];
  }
  return sums;
}

}  // namespace lockstep::internal::server
