// A table of rows on parameter servers, such as the vectors of users and of words.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/server/embedding_options.h"

namespace lockstep {

class WorkerContext;

namespace internal::inline server {
struct TableState;
}  // namespace internal::server

/// A handle; its copies mean the same table, which lives as long as any copy, and may outlive its strategy.
class Embedding {
 public:
  Embedding() = default;

  const std::string& name() const;
  /// Rows that are kept: those that were pushed, and admitted.
  int64_t size() const;
  /// All memory that the table takes.
  int64_t bytes() const;

  /// In a scheduled step: the rows of `ids`, an int64 tensor of any shape, as [..., dim]. It pulls each row once, and
  /// collects gradients, which push() takes; those of a row that stands in `ids` several times add up. Within a step a
  /// row has one value. A UsageError (LS-ROW-RANGE) for an id that is no row.
  at::Tensor look_up(WorkerContext& context, const at::Tensor& ids) const;

  /// The rows of `ids` as [..., dim], of one state of the servers. Outside of steps.
  at::Tensor read(const at::Tensor& ids) const;
  /// Calls `fn(row, weights)` for each row that is kept, of one state of the servers, in no order. `weights` is [dim]
  /// and its own. Memory stays bounded: rows are read in parts. Outside of steps.
  void for_each(const std::function<void(int64_t row, const at::Tensor& weights)>& fn) const;

  /// For the library's own use.
  explicit Embedding(std::shared_ptr<internal::TableState> state) : state_(std::move(state)) {}
  const std::shared_ptr<internal::TableState>& state() const;

 private:
  std::shared_ptr<internal::TableState> state_;
};

/// The rule by which pushed rows are updated. A handle.
class RowsOptimizer {
 public:
  double learning_rate() const;
  /// For all steps that are scheduled from now on.
  void set_learning_rate(double rate) const;

  /// For the library's own use.
  explicit RowsOptimizer(std::shared_ptr<internal::TableState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<internal::TableState> state_;
};

}  // namespace lockstep
