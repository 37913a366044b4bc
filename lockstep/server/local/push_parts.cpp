#include "lockstep/server/local/push_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "lockstep/optim/loops/clip.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

std::vector<Payload> by_server(const std::shared_ptr<const StepPush>& push, const ValuesPlacement& placement) {
  const auto count = static_cast<std::size_t>(placement.servers);
  if (count == 1) return {push};
  std::vector<std::shared_ptr<StepPush>> all;
  for (std::size_t s = 0; s < count; ++s) {
    all.push_back(std::make_shared<StepPush>(StepPush{.part = push->part, .options = push->options}));
  }
  const auto for_each_part = [&](const Variable& variable, const auto& visit) {
    for (const VariablePart& part : placement.parts_of(variable.state()))
      visit(*all[static_cast<std::size_t>(part.server)], part);
  };
  for (const StepPush::Gradient& one : push->gradients) {
    for_each_part(one.variable, [&](StepPush& to, const VariablePart& part) {
      to.gradients.push_back({one.variable, part_of(one.gradient, part)});
    });
  }
  for (const StepPush::Buffer& one : push->buffers)  // of variables that are never cut
    for_each_part(one.variable, [&](StepPush& to, const VariablePart&) { to.buffers.push_back(one); });
  for (const StepPush::Change& one : push->changes) {
    for_each_part(one.variable, [&](StepPush& to, const VariablePart& part) {
      to.changes.push_back({one.variable, one.change, part_of(one.value, part)});
    });
  }
  for (const RowsOfStep& rows : push->rows) {
    std::vector<std::vector<int64_t>> places(count);
    std::vector<RowsOfStep> of_servers(count, RowsOfStep{rows.table});
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
      const auto server = static_cast<std::size_t>(placement.server_of_row(*rows.table, rows.ids[i]));
      of_servers[server].ids.push_back(rows.ids[i]);
      places[server].push_back(static_cast<int64_t>(i));
    }
    for (std::size_t s = 0; s < count; ++s) {
      if (places[s].empty()) continue;
      of_servers[s].gradients = rows.gradients.index_select(0, at::tensor(places[s], at::kLong));
      all[s]->rows.push_back(std::move(of_servers[s]));
    }
  }
  return {all.begin(), all.end()};
}

std::optional<std::string> not_finite_in(const StepPush& push) {
  const auto is_finite = [](const at::Tensor& gradient) { return gradient.isfinite().all().item<bool>(); };
  for (const StepPush::Gradient& one : push.gradients) {
    if (!is_finite(one.gradient)) return fmt::format("variable '{}'", one.variable.name());
  }
  for (const RowsOfStep& one : push.rows) {
    if (!is_finite(one.gradients)) return fmt::format("table '{}'", one.table->table.options().name);
  }
  return std::nullopt;
}

double squares_of(const std::vector<const StepPush*>& parts) {
  std::map<const VariableState*, at::Tensor> dense;
  std::map<const TableState*, std::map<int64_t, at::Tensor>> rows;
  const auto add = [](at::Tensor& sum, const at::Tensor& gradient) {
    const at::Tensor wide = gradient.to(at::kDouble);
    sum = sum.defined() ? sum + wide : wide;
  };
  for (const StepPush* part : parts) {
    if (!part) continue;
    for (const StepPush::Gradient& one : part->gradients) add(dense[&one.variable.state()], one.gradient);
    for (const RowsOfStep& one : part->rows) {
      for (std::size_t i = 0; i < one.ids.size(); ++i)
        add(rows[one.table.get()][one.ids[i]], one.gradients[static_cast<int64_t>(i)]);
    }
  }
  double squares = 0;
  for (const auto& [state, sum] : dense) squares += sum.square().sum().item<double>();
  for (const auto& [table, of_table] : rows) {
    for (const auto& [id, sum] : of_table) squares += sum.square().sum().item<double>();
  }
  return squares;
}

double clip_factor_of(double squares, double most) { return clip_factor(std::sqrt(squares), most); }

}  // namespace lockstep::internal::server
