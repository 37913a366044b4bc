#include "lockstep/server/remote/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

[[noreturn]] void throw_made_late(const std::string& what) {
  throw UsageError("LS-MADE-LATE",
                   fmt::format("{} was made after coordinate() had begun, and other tasks do not know it", what),
                   "make all variables, tables and steps before coordinate()");
}

}  // namespace

Catalog::Catalog(std::vector<Variable> variables, const std::vector<std::vector<Shard>>& shards,
                 std::vector<std::shared_ptr<TableState>> tables)
    : variables_(std::move(variables)), tables_(std::move(tables)) {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    places_[&variables_[i].state()] = static_cast<uint32_t>(i);
    servers_.push_back(static_cast<int32_t>(shards[i].front().server));
    const bool is_whole =
        std::ranges::all_of(shards[i], [&](const Shard& one) { return one.server == shards[i].front().server; });
    if (is_whole) continue;
    throw UsageError("LS-SHARDS",
                     fmt::format("variable '{}' is cut into {} shards on several servers, and servers that are "
                                 "processes hold whole variables only",
                                 variables_[i].name(), shards[i].size()),
                     "leave the partitioner out, and balance the servers by .placement = kByBytes");
  }
}

uint32_t Catalog::number_of(const VariableState& variable) const {
  const auto found = places_.find(&variable);
  if (found == places_.end()) throw_made_late(fmt::format("variable '{}'", variable.name()));
  return found->second;
}

uint32_t Catalog::number_of(const Variable& variable) const { return number_of(variable.state()); }

uint32_t Catalog::number_of(const TableState& table) const {
  const auto found = std::ranges::find_if(tables_, [&](const auto& one) { return one.get() == &table; });
  if (found == tables_.end()) throw_made_late(fmt::format("table '{}'", table.table.options().name));
  return static_cast<uint32_t>(found - tables_.begin());
}

int32_t Catalog::server_of(const VariableState& variable) const { return servers_[number_of(variable)]; }

std::string Catalog::text() const {
  std::string text;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Variable& one = variables_[i];
    text += fmt::format("variable '{}' {} [{}] {}{} on server {}\n", one.name(), c10::toString(one.dtype()),
                        fmt::join(one.sizes(), ", "), kind_of(one.state()), one.trainable() ? ", trainable" : "",
                        servers_[i]);
  }
  for (const auto& one : tables_) text += text_of(*one) + "\n";
  return text;
}

}  // namespace lockstep::internal::server
