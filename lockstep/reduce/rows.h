// Sparse gradients: some rows of a matrix, and how those of several replicas come together.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal::inline reduce {

/// Some rows of a tensor's first dimension: distinct ids in ascending order, and their numbers.
struct Rows {
  std::vector<int64_t> ids;
  /// Row by row in the order of `ids`, float32 or float64: the dtype in which they are added.
  at::Tensor values;

  int64_t count() const { return static_cast<int64_t>(ids.size()); }
};

/// The dtype of Rows::values for a tensor of real numbers: float32 for half precision, otherwise its own.
at::ScalarType type_of_rows(at::ScalarType numbers);

/// Whether coalesced() takes it: sparse in its first dimension alone.
bool is_of_rows(const at::Tensor& gradient);

/// The rows of a sparse gradient. Where an id comes several times, its rows are added in the order in which they stand,
/// whatever the number of threads. Complex numbers are pairs of real ones. Throws std::out_of_range for an id that is
/// not from 0 to below the first dimension's size.
Rows coalesced(const at::Tensor& gradient);

/// Which replicas' rows make each row of a sum.
struct MergedRows {
  /// A row of one replica.
  struct Part {
    int64_t replica;
    int64_t index;  // among the replica's rows
  };
  std::vector<int64_t> ids;        // ascending; every id that any replica has
  std::vector<std::size_t> first;  // by id: its first part; one more at the end
  std::vector<Part> parts;         // by id, then replica
};

/// `ids[r]` are those of replica r, ascending. The result depends on nothing else.
MergedRows merged(std::span<const std::span<const int64_t>> ids);

}  // namespace lockstep::internal::reduce
