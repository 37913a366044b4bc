#include "lockstep/server/embedding.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/replica/call_gate.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/option_checks.h"
#include "lockstep/server/worker_context.h"

namespace lockstep {

using internal::GateHold;

namespace {

/// Rows that for_each has at a time.
constexpr int64_t kRowsAtOnce = 4096;

at::Tensor checked_ids(const at::Tensor& ids, const std::string& table, const char* call) {
  if (ids.defined() && !at::isFloatingType(ids.scalar_type()) && ids.scalar_type() != at::kBool && !ids.is_complex() &&
      ids.device().is_cpu() && ids.layout() == at::kStrided)
    return ids.detach().to(at::kLong).contiguous();
  throw UsageError("LS-ROW-IDS",
                   fmt::format("{} of table '{}' was given {}", call, table,
                               ids.defined() ? fmt::format("ids of dtype {}", c10::toString(ids.scalar_type()))
                                             : std::string("an undefined tensor")),
                   "give an int64 tensor in the host's memory");
}

}  // namespace

std::string internal::text_of(const TableState& state) {
  const EmbeddingOptions& options = state.table.options();
  return fmt::format(
      "table '{}' {} rows {} dim {} admit_after {} evict_after {} limit_bytes {} initial {} rule {} slots [{}]",
      options.name, c10::toString(options.dtype), options.rows, options.dim, options.admit_after, options.evict_after,
      options.limit_bytes, text_of(options.initial), state.rule ? state.rule->name() : "none",
      fmt::join(state.table.format().slots, ", "));
}

const std::shared_ptr<internal::TableState>& Embedding::state() const {
  if (state_) return state_;
  throw UsageError("LS-EMPTY-HANDLE", "an Embedding is empty", "use what strategy.make_embedding() returned");
}

const std::string& Embedding::name() const { return state()->table.options().name; }

int64_t Embedding::size() const {
  const GateHold hold(state()->gate, "Variable::read");
  return state()->table.size();
}

int64_t Embedding::bytes() const {
  const GateHold hold(state()->gate, "Variable::read");
  return state()->table.bytes();
}

at::Tensor Embedding::look_up(WorkerContext& context, const at::Tensor& ids) const {
  const at::Tensor flat = checked_ids(ids, name(), "look_up").view({-1});
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(state()->table.options().dim);
  return context.rows_of(state(), flat).view(shape);
}

at::Tensor Embedding::read(const at::Tensor& ids) const {
  const at::Tensor flat = checked_ids(ids, name(), "read").view({-1});
  const GateHold hold(state()->gate, "Variable::read");
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(state()->table.options().dim);
  at::Tensor rows = at::empty(shape, state()->table.options().dtype);
  state()->table.look_up(internal::host_numbers<int64_t>(flat), internal::host_bytes_to_write(rows).data());
  return rows;
}

void Embedding::for_each(const std::function<void(int64_t row, const at::Tensor& weights)>& fn) const {
  const internal::TableCut cut = [&] {
    const GateHold hold(state()->gate, "Variable::read");
    return state()->table.cut();
  }();
  for (int64_t first = 0; first < cut.size(); first += kRowsAtOnce) {
    const internal::SavedRows rows = cut.rows(first, std::min(kRowsAtOnce, cut.size() - first));
    const auto ids = internal::host_numbers<int64_t>(rows.ids);
    for (std::size_t i = 0; i < ids.size(); ++i) fn(ids[i], rows.weights[static_cast<int64_t>(i)]);
  }
}

double RowsOptimizer::learning_rate() const {
  const GateHold hold(state_->gate, "Optimizer::learning_rate");
  return state_->rule->learning_rate();
}

void RowsOptimizer::set_learning_rate(double rate) const {
  internal::check_learning_rate(rate);
  const GateHold hold(state_->gate, "Optimizer::set_learning_rate");
  state_->rule->set_learning_rate(rate);
}

}  // namespace lockstep
