// An optimizer's rule as the rows of a table are updated by it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/loops/update_block.h"
#include "lockstep/optim/rules/update_rule.h"

namespace lockstep::internal::inline optim {
class GroupRule;
}  // namespace lockstep::internal::optim

namespace lockstep::internal::inline server {

/// A row is updated when it is pushed, and not otherwise: its slots stand still meanwhile, as do those of momentum. A
/// rule that counts updates, as Adam does to correct its bias, counts those of each row by itself.
class RowRule {
 public:
  /// Of SGD, with momentum or without, Adagrad and Adam, as far as LibTorch lets them have sparse gradients: a
  /// UsageError (LS-ROW-RULE) that names the table for all others.
  RowRule(std::shared_ptr<const GroupRule> rule, const std::string& table);

  const GroupRule& rule() const { return *rule_; }
  UpdateKind kind() const { return kind_; }
  const std::vector<SlotSpec>& slots() const { return slots_; }
  /// Whether the numbers of a row's update depend on how many the row has had.
  bool counts() const { return counts_; }
  /// The numbers of a row's `update`-th update, counted from 1.
  Coefficients coefficients(int64_t update, double learning_rate) const;

 private:
  std::shared_ptr<const GroupRule> rule_;
  UpdateKind kind_;
  std::vector<SlotSpec> slots_;
  bool counts_;
};

}  // namespace lockstep::internal::server
