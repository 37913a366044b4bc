#include "lockstep/server/local/pull_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <variant>

#include "lockstep/core/error.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

/// Throws a PeerError where a server has answered with something else than what was asked for.
void require_values_of(const PulledTensors& answer, const WantedOfServer& asked) {
  const auto expect = [&](bool is_so) {
    if (is_so) return;
    throw PeerError("LS-PEER-MESSAGE",
                    fmt::format("server {} has sent other values than a step asked for", asked.server),
                    "start all tasks with the same version of Lockstep");
  };
  if (const auto* const rows = std::get_if<WantedRows>(&asked.wanted)) {
    const EmbeddingOptions& options = rows->table->table.options();
    expect(answer.values.size() == 1 && answer.values.front().defined());
    const at::Tensor& value = answer.values.front();
    expect(value.sizes() == at::IntArrayRef({static_cast<int64_t>(rows->ids.size()), options.dim}) &&
           value.scalar_type() == options.dtype);
    return;
  }
  const auto& wanted = std::get<WantedVariables>(asked.wanted);
  expect(answer.values.size() == wanted.variables.size());
  for (std::size_t i = 0; i < answer.values.size(); ++i) {
    const at::Tensor& value = answer.values[i];
    const Variable& variable = wanted.variables[i];
    expect(value.defined() || !wanted.have[i].empty());
    if (!value.defined()) continue;
    expect(!value.is_sparse() && value.scalar_type() == variable.dtype());
    if (!variable.state().on_write()) continue;  // such a buffer may have grown
    static const VariablePart whole;
    const VariablePart& part = asked.parts.empty() ? whole : *asked.parts[i];
    expect(value.sizes() == at::IntArrayRef(sizes_of(part, variable.sizes())));
  }
}

}  // namespace

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

std::vector<PulledValue> put_together(const Wanted& wanted, const std::vector<WantedOfServer>& asked,
                                      const std::vector<const PulledTensors*>& answers,
                                      FunctionRef<at::Tensor(std::size_t)> old) {
  const auto answer = [&](std::size_t i) -> const PulledTensors& { return *answers[i]; };
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (answer(i).error) std::rethrow_exception(answer(i).error);
    require_values_of(answer(i), asked[i]);
  }
  if (const auto* const rows = std::get_if<WantedRows>(&wanted)) {
    if (asked.size() == 1) return {{.value = answer(0).values.front()}};
    const at::Tensor& first = answer(0).values.front();
    at::Tensor all = at::empty({static_cast<int64_t>(rows->ids.size()), first.size(1)}, first.options());
    for (std::size_t i = 0; i < asked.size(); ++i)
      all.index_copy_(0, at::tensor(asked[i].places, at::kLong), answer(i).values.front());
    return {{.value = all}};
  }
  const auto& variables = std::get<WantedVariables>(wanted);
  std::vector<PulledValue> values(variables.variables.size());
  if (asked.size() == 1) {  // which has each of them as a whole
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = {.value = answer(0).values[i], .at = {answer(0).at}};
    return values;
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    for (std::size_t k = 0; k < asked[i].places.size(); ++k) {
      const auto place = static_cast<std::size_t>(asked[i].places[k]);
      PulledValue& pulled = values[place];
      pulled.at.push_back(answer(i).at);  // servers are asked in their order, which is that of parts
      const at::Tensor& value = answer(i).values[k];
      if (asked[i].parts[k]->is_whole()) {
        pulled.value = value;
      } else if (value.defined()) {
        if (!pulled.value.defined()) {
          const bool has_old = !variables.have[place].empty();
          pulled.value =
              has_old ? old(place).detach().clone() : at::empty(variables.variables[place].sizes(), value.options());
        }
        put_part(pulled.value, value, *asked[i].parts[k]);
      }
    }
  }
  return values;
}

}  // namespace lockstep::internal::server
