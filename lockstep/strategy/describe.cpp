// What a strategy tells of itself: Strategy::describe().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/fingerprint.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/memory/tensor_allocator.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/variable_table.h"

namespace lockstep {

namespace {

/// What a program may set so that idle cores work.
const char* use_of_idle_cores(const internal::LanePlan& plan) {
  if (plan.num_lanes() < plan.num_replicas) {
    return "more lanes (.devices) use them without changing results, more .replicas or .threads_per_replica change "
           "them";
  }
  return ".threads_per_replica uses them, and so do more replicas where the strategy has .replicas; both change "
         "results";
}

}  // namespace

std::string Strategy::describe() const {
  const internal::LanePlan& plan = group_->plan();
  std::string text =
      fmt::format("{}: {} replica{} on {} lane{} [{}]{}\n", name_, plan.num_replicas, plan.num_replicas == 1 ? "" : "s",
                  plan.num_lanes(), plan.num_lanes() == 1 ? "" : "s", fmt::join(plan.names, ", "),
                  num_workers() == 1 ? "" : fmt::format(", of {} in all", num_replicas()));
  if (num_workers() > 1) {
    text += fmt::format("  worker {} of {}, with the replicas {} to {} of {}\n", worker_index(), num_workers(),
                        first_replica().value(), first_replica() + num_local_replicas() - 1, num_replicas());
    text += fmt::format("  workers are connected by {}\n", group_->rounds().describe());
  }
  text += plan.replicas_from_machine
              ? "  the number of replicas is this machine's number of cores; set .replicas to get the same results "
                "elsewhere\n"
              : "  the number of replicas is the program's: it is the same on every machine\n";
  text += fmt::format("  {} intra-op thread{} for each replica; {} core{} available, lanes {}\n", plan.compute.threads,
                      plan.compute.threads == 1 ? "" : "s", plan.available_cores, plan.available_cores == 1 ? "" : "s",
                      plan.pinned() ? "pinned" : "not pinned");
  const int64_t idle =
      plan.available_cores - plan.workers_on_cores * static_cast<int64_t>(plan.num_lanes()) * plan.compute.threads;
  if (idle > 0)
    text += fmt::format("  {} core{} idle: {}\n", idle, idle == 1 ? " stays" : "s stay", use_of_idle_cores(plan));
  text += fmt::format("  mirrored variables: {}; replicas' values are added {}; seed {}\n",
                      registry_->placement().describe(), group_->reducer().describe(), group_->seed());
  text += fmt::format("  parameters meet {}\n", registry_->synchronization().describe());
  text += fmt::format("  factored gradients: {}{}\n", internal::name_of(factoring_),
                      factoring_ == internal::Factoring::kOff
                          ? ""
                          : "; LOCKSTEP_FACTORED_GRADIENTS=off writes all gradients to memory");
  text += fmt::format("  denormal numbers are {}; {}\n",
                      plan.compute.denormals == Denormals::kFlush ? "flushed to 0" : "kept",
                      internal::tensor_allocator_description());
  text += fmt::format("  {}; own loops {}; fingerprint {}\n", internal::platform_description(),
                      internal::name_of(internal::simd()), internal::platform_fingerprint());
  for (const auto& one : optimizers_) {
    const auto optimizer = one.lock();
    const std::string form = optimizer && !group_->running() ? optimizer->form() : "";
    if (!form.empty()) text += fmt::format("  '{}': {}\n", optimizer->name(), form);
  }
  if (internal::StrategyAccess::rounds_sums(*this)) {
    text += fmt::format("  sums of float32 gradients travel as {}: results depend on the number of workers\n",
                        internal::name_of(wire_));
  }
  if (!group_->running() && !registry_->variables().empty()) text += describe_variables();
  return text;
}

std::string Strategy::describe_variables() const {
  constexpr std::size_t kRows = 40;
  std::vector<internal::VariableRow> rows;
  std::map<const internal::VariableState*, std::size_t> row_with;
  for (const Variable& variable : variables()) {
    row_with[&variable.state()] = rows.size();
    rows.push_back(internal::row_of(variable.state()));
  }
  for (const auto& one : optimizers_) {
    const auto optimizer = one.lock();
    if (!optimizer) continue;
    for (std::size_t i = 0; i < optimizer->variables().size(); ++i) {
      const auto form = optimizer->form_of(i);
      const auto row = row_with.find(optimizer->variables()[i].get());
      if (form.text.empty() || row == row_with.end()) continue;
      rows[row->second].update = form.text;  // of the optimizer that was made last
      rows[row->second].sent = form.bytes_sent;
    }
  }
  return internal::table_of(internal::shortened(rows, kRows));
}

}  // namespace lockstep
