#include "lockstep/optim/gradients_on_workers.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

std::vector<char> gradients_on_any_worker(const ReplicaGroup& group,
                                          std::span<const std::shared_ptr<VariableState>> variables,
                                          FunctionRef<bool(std::size_t)> is_here) {
  // For each variable: '1' where there is a gradient; otherwise '0', or 'f' where the variable is frozen.
  std::string mine(variables.size(), '0');
  for (std::size_t i = 0; i < variables.size(); ++i) {
    mine[i] = is_here(i) ? '1' : variables[i]->component(0).requires_grad() ? '0' : 'f';
  }
  const std::vector<Proposal> all = propose(group.world(), {.call = "gradients", .name = mine, .step = group.step()});
  std::vector<char> anywhere(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    int64_t frozen = -1;
    int64_t trained = -1;
    for (std::size_t w = 0; w < all.size(); ++w) {
      const char state = all[w].name.at(i);  // all have as many variables: the meeting's signature says so
      if (state == '1') anywhere[i] = 1;
      (state == 'f' ? frozen : trained) = static_cast<int64_t>(w);
    }
    if (frozen < 0 || trained < 0) continue;
    throw UsageError(
        "LS-FROZEN-UNLIKE",
        fmt::format("variable '{}' is frozen on worker {} and not on worker {}", variables[i]->name(), frozen, trained),
        "call requires_grad_() with the same value on all replicas");
  }
  return anywhere;
}

}  // namespace lockstep::internal
