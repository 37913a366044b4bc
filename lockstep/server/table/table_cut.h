// The rows of a table at one moment, as tensors: for checkpoints and for reads of whole tables.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lockstep/server/table/row_store.h"

namespace lockstep::internal::inline server {

/// What a table's rows consist of.
struct RowFormat {
  std::string table;
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::string> slots;  // their names, in the order in which they lie behind the weights
  bool has_updates = false;        // whether rows count their updates
};

/// Some rows, each whole. All tensors have as many elements in their first dimension.
struct SavedRows {
  at::Tensor ids;                           // int64
  at::Tensor positions;                     // int64: when each changed last
  at::Tensor weights;                       // (rows, dim), of the table's dtype
  std::map<std::string, at::Tensor> slots;  // likewise, by name
  at::Tensor updates;  // int64: how many each has had; undefined where the table's rule does not count them
};

/// Some rows that are counted and not admitted yet.
struct SavedCounts {
  at::Tensor ids, positions, pushes;  // int64
};

/// For one thread, which need not be the table's; the table may change and end meanwhile.
class TableCut {
 public:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::min();

  TableCut(RowFormat format, FrozenRows rows, FrozenRows seen)
      : format_(std::move(format)), rows_(std::move(rows)), seen_(std::move(seen)) {}

  const RowFormat& format() const { return format_; }
  int64_t size() const { return rows_.size(); }
  int64_t counted() const { return seen_.size(); }
  /// Several threads may read them at once.
  const FrozenRows& frozen() const { return rows_; }
  const FrozenRows& frozen_counts() const { return seen_; }

  /// Those of the rows from number `first` on, `count` of them, that have changed at a position after `since`. Rows
  /// have no particular order.
  SavedRows rows(int64_t first, int64_t count, int64_t since = kAll) const;
  SavedCounts counts(int64_t first, int64_t count, int64_t since = kAll) const;

 private:
  RowFormat format_;
  FrozenRows rows_;
  FrozenRows seen_;
};

/// A UsageError (LS-STATE-MISFIT) that says which row, slot or count of the table is missing or does not fit.
void check(const SavedRows& rows, const RowFormat& format);
void check(const SavedCounts& counts, const std::string& table);

}  // namespace lockstep::internal::server
