// What a program has made, in order: so tasks name variables, tables and steps to each other by numbers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/server/local/table_state.h"
#include "lockstep/server/local/variable_parts.h"
#include "lockstep/server/shard_placement.h"
#include "lockstep/variable/variable.h"

namespace lockstep::internal::inline server {

/// Constant once it is made. Any thread may use it.
class Catalog {
 public:
  /// `shards` are those of each variable.
  Catalog(std::vector<Variable> variables, const std::vector<std::vector<Shard>>& shards,
          std::vector<std::shared_ptr<TableState>> tables);

  const std::vector<Variable>& variables() const { return variables_; }
  const std::vector<std::shared_ptr<TableState>>& tables() const { return tables_; }
  /// Each throws a UsageError (LS-MADE-LATE) for what was made after the catalog.
  uint32_t number_of(const Variable& variable) const;
  uint32_t number_of(const TableState& table) const;
  /// What each server has of a variable; the same error.
  const std::vector<VariablePart>& parts_of(const VariableState& variable) const { return parts_[number_of(variable)]; }
  /// Whether it is there, by its name.
  bool has_variable(const std::string& name) const { return names_.contains(name); }
  /// Whether several servers have parts of it. Not of what was made after the catalog.
  bool is_cut(const VariableState& variable) const;
  /// What one server has of it; null: nothing.
  const VariablePart* part_on(int32_t server, const VariableState& variable) const;

  /// One line for each: what must be equal on all tasks.
  std::string text() const;

 private:
  uint32_t number_of(const VariableState& variable) const;

  const std::vector<Variable> variables_;
  const std::vector<std::shared_ptr<TableState>> tables_;
  std::vector<std::vector<VariablePart>> parts_;     // by variable
  std::map<const VariableState*, uint32_t> places_;  // in `variables_`
  std::set<std::string> names_;
};

}  // namespace lockstep::internal::server
