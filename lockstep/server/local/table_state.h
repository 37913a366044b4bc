// What stands behind an Embedding: the rows of its table that lie here, and their rule.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/server/embedding_options.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/table/row_rule.h"
#include "lockstep/server/table/row_table.h"

namespace lockstep::internal::inline optim {
class GroupRule;
}  // namespace lockstep::internal::optim

namespace lockstep::internal::inline server {

/// Whoever uses `table` or `rule` passes the gate.
struct TableState {
  /// The part of the table that lies on `server` of `servers`.
  TableState(const EmbeddingOptions& options, uint64_t seed, std::shared_ptr<StrategyGate> its_gate, int64_t server = 0,
             int64_t servers = 1)
      : gate(std::move(its_gate)), empty([=] { return RowTable(options, seed, server, servers); }), table(empty()) {}

  const std::shared_ptr<StrategyGate> gate;
  const std::function<RowTable()> empty;  // the same part, without rows and rule
  RowTable table;
  std::shared_ptr<GroupRule> rule = nullptr;  // null: the table has no optimizer
  int64_t evicted_at = 0;                     // how many steps counted at the last eviction
  int64_t promised_rows = 0;                  // new ones at most, of pushes that are held
};

/// In one line what all tasks must have made a table with, and what a replay must have.
std::string text_of(const TableState& state);

/// What a step pushes to a table: each row once.
struct RowsOfStep {
  std::shared_ptr<TableState> table;
  std::vector<int64_t> ids = {};
  at::Tensor gradients = {};  // [ids, dim], float64 for a table of float64, otherwise float32
};

}  // namespace lockstep::internal::server
