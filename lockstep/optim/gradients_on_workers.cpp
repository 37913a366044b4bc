#include "lockstep/optim/gradients_on_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

std::vector<Gradients> gradients_on_any_worker(const ReplicaGroup& group,
                                               std::span<const std::shared_ptr<VariableState>> variables,
                                               FunctionRef<Gradients(std::size_t)> here, FunctionRef<void()> check) {
  // For each variable: its Gradients as a digit, or 'f' where there are none and the variable is frozen.
  const auto fill_in = [&](Proposal& mine) {
    check();
    mine.data.clear();
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const Gradients own = here(i);
      const bool frozen = own == Gradients::kNone && !variables[i]->component(0).requires_grad();
      mine.data += frozen ? 'f' : static_cast<char>('0' + static_cast<char>(own));
    }
  };
  const auto all = agree_on_call(group.rounds(), {.call = "gradients", .step = group.step()}, fill_in);
  for (std::size_t w = 0; w < all.size(); ++w) {
    if (all[w].data.size() == variables.size()) continue;
    throw PeerError("LS-PEER-MESSAGE",
                    fmt::format("worker {} told of the gradients of {} variables instead of {}", w, all[w].data.size(),
                                variables.size()),
                    "start all workers with the same version of Lockstep");
  }
  std::vector<Gradients> anywhere(variables.size(), Gradients::kNone);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    int64_t frozen = -1;
    int64_t trained = -1;
    for (std::size_t w = 0; w < all.size(); ++w) {
      const char state = all[w].data[i];
      if (state == '1' || state == '2') anywhere[i] = std::max(anywhere[i], static_cast<Gradients>(state - '0'));
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
