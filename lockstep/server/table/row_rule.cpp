#include "lockstep/server/table/row_rule.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/optim/rules/group_rule.h"

namespace lockstep::internal::inline server {

namespace {

/// Why a table cannot have the rule; empty where it can.
std::string reason_against(const GroupRule& rule) {
  // The buffer of a row moves with the row.
  const bool moves = rule.kind() == UpdateKind::kSgdMomentum || rule.kind() == UpdateKind::kSgdNesterov;
  const SparseSupport support = rule.sparse();
  if (support.rows || (moves && support.refused.empty())) return {};
  return support.refused.empty() ? rule.name() : support.refused;
}

}  // namespace

RowRule::RowRule(std::shared_ptr<const GroupRule> rule, const std::string& table)
    : rule_(std::move(rule)), kind_(rule_->kind()), slots_(rule_->slots()) {
  const std::string reason = reason_against(*rule_);
  if (!reason.empty()) {
    throw UsageError("LS-ROW-RULE", fmt::format("table '{}' was given {}, which updates no single rows", table, reason),
                     "give SGD, Adagrad or Adam without weight decay");
  }
  // Bytes are compared: a coefficient that differs in any bit makes a row's update depend on its count.
  const Coefficients first = coefficients(1, 1);
  const Coefficients second = coefficients(2, 1);
  counts_ = std::memcmp(&first, &second, sizeof first) != 0;
}

Coefficients RowRule::coefficients(int64_t update, double learning_rate) const {
  return rule_->row_coefficients(update, learning_rate);
}

}  // namespace lockstep::internal::server
