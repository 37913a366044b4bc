#include "lockstep/server/local/push_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "lockstep/optim/loops/clip.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

int32_t ValuesPlacement::server_of_row(const TableState& table, int64_t id) const {
  if (servers == 1) return 0;
  return static_cast<int32_t>(server::server_of(row_hash(table_number(table.table.options().name), id), servers));
}

std::vector<WantedOfServer> by_server(Wanted wanted, const ValuesPlacement& placement) {
  const auto count = static_cast<std::size_t>(placement.servers);
  if (count == 1) return {{.server = 0, .wanted = std::move(wanted)}};
  std::vector<WantedOfServer> all(count);
  for (std::size_t s = 0; s < count; ++s) all[s].server = static_cast<int32_t>(s);
  if (const auto* rows = std::get_if<WantedRows>(&wanted)) {
    for (WantedOfServer& one : all) one.wanted = WantedRows{rows->table};
    for (std::size_t i = 0; i < rows->ids.size(); ++i) {
      WantedOfServer& one = all[static_cast<std::size_t>(placement.server_of_row(*rows->table, rows->ids[i]))];
      std::get<WantedRows>(one.wanted).ids.push_back(rows->ids[i]);
      one.places.push_back(static_cast<int64_t>(i));
    }
  } else {
    const auto& variables = std::get<WantedVariables>(wanted);
    for (WantedOfServer& one : all)
      std::get<WantedVariables>(one.wanted) = {.part = variables.part, .whole = variables.whole};
    for (std::size_t i = 0; i < variables.variables.size(); ++i) {
      const std::vector<VariablePart>& parts = placement.parts_of(variables.variables[i].state());
      for (std::size_t p = 0; p < parts.size(); ++p) {
        WantedOfServer& one = all[static_cast<std::size_t>(parts[p].server)];
        auto& of_server = std::get<WantedVariables>(one.wanted);
        of_server.variables.push_back(variables.variables[i]);
        of_server.have.emplace_back();
        if (p < variables.have[i].size()) of_server.have.back().push_back(variables.have[i][p]);
        one.places.push_back(static_cast<int64_t>(i));
        one.parts.push_back(&parts[p]);
      }
    }
  }
  std::erase_if(all, [](const WantedOfServer& one) { return one.places.empty(); });
  if (all.empty()) all.push_back({.server = 0, .wanted = std::move(wanted)});
  return all;
}

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
