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

/// "server 0", or "server 0: rows 0 to 3, 6 to 8".
std::vector<std::string> texts_of(const std::vector<VariablePart>& parts) {
  std::vector<std::string> texts;
  for (const VariablePart& part : parts) {
    std::vector<std::string> rows;
    for (const Shard& one : part.shards) rows.push_back(fmt::format("{} to {}", one.first, one.first + one.count - 1));
    texts.push_back(part.is_whole() ? fmt::format("server {}", part.server)
                                    : fmt::format("server {}: rows {}", part.server, fmt::join(rows, ", ")));
  }
  return texts;
}

}  // namespace

Catalog::Catalog(std::vector<Variable> variables, const std::vector<std::vector<Shard>>& shards,
                 std::vector<std::shared_ptr<TableState>> tables)
    : variables_(std::move(variables)), tables_(std::move(tables)) {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    places_[&variables_[i].state()] = static_cast<uint32_t>(i);
    parts_.push_back(server::parts_of(shards[i]));
    names_.insert(variables_[i].name());
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

bool Catalog::is_cut(const VariableState& variable) const {
  const auto found = places_.find(&variable);
  return found != places_.end() && !parts_[found->second].front().is_whole();
}

const VariablePart* Catalog::part_on(int32_t server, const VariableState& variable) const {
  const std::vector<VariablePart>& parts = parts_of(variable);
  const auto found = std::ranges::find(parts, server, &VariablePart::server);
  return found == parts.end() ? nullptr : &*found;
}

std::string Catalog::text() const {
  std::string text;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Variable& one = variables_[i];
    text += fmt::format("variable '{}' {} [{}] {}{} on ", one.name(), c10::toString(one.dtype()),
                        fmt::join(one.sizes(), ", "), kind_of(one.state()), one.trainable() ? ", trainable" : "");
    text += fmt::format("{}\n", fmt::join(texts_of(parts_[i]), "; "));
  }
  for (const auto& one : tables_) text += text_of(*one) + "\n";
  return text;
}

}  // namespace lockstep::internal::server
