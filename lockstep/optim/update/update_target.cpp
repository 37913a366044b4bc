#include "lockstep/optim/update/update_target.h"

#include "lockstep/core/loops/checksum.h"

namespace lockstep::internal::inline optim {

std::vector<std::shared_ptr<VariableState>> variables_of(const std::vector<UpdateTarget>& targets) {
  std::vector<std::shared_ptr<VariableState>> variables;
  for (const UpdateTarget& target : targets) variables.push_back(target.variable);
  return variables;
}

std::vector<PlannedTarget> planned(const std::vector<UpdateTarget>& targets) {
  std::vector<PlannedTarget> all;
  for (const UpdateTarget& target : targets) {
    PlannedTarget& one = all.emplace_back();
    one.bytes = target.variable->bytes();
    one.type = target.variable->number_type();
    one.kind = target.kind;
    one.slots = static_cast<int>(target.slots.size());
    one.together = target.own_rule && !target.own_rule->elementwise();
  }
  return all;
}

int64_t blocks_in(const std::vector<UpdateTarget>& targets) {
  int64_t blocks = 0;
  for (const UpdateTarget& target : targets) blocks += blocks_of(target.variable->bytes());
  return blocks;
}

}  // namespace lockstep::internal::optim
