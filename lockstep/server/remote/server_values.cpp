#include "lockstep/server/remote/server_values.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/server/local/push_parts.h"
#include "lockstep/server/remote/payload_codec.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

void require_gradients(const Variable& variable, bool require) {
  for (int64_t r = 0; r < variable.state().num_components(); ++r)
    variable.state().component(r).set_requires_grad(require);
}

}  // namespace

ServerValues::ServerValues(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const Catalog& catalog,
                           int64_t counted, bool in_rounds, int32_t server, int32_t servers,
                           std::function<void(std::exception_ptr)> failed)
    : strategy_(strategy),
      gate_(std::move(gate)),
      failed_(std::move(failed)),
      store_(strategy, gate_, counted, in_rounds, failed_),
      rates_(std::in_place, strategy),
      state_(strategy, catalog, server, counted) {
  store_.lend_values();  // they are made into bytes at once
  if (servers == 1) return;
  store_.take_coefficients();
  store_.keep_parts([&catalog, server](const VariableState& variable) { return catalog.part_on(server, variable); });
  // Optimizers say nothing of frozen variables that have no gradient.
  const GateHold hold(gate_, "Strategy::variables");
  for (const Variable& one : catalog.variables()) {
    if (!one.trainable() || catalog.part_on(server, one.state()) != nullptr) continue;
    elsewhere_.push_back(one);
    require_gradients(one, false);
  }
}

ServerValues::~ServerValues() {
  const GateHold hold(gate_, "Strategy::variables");
  rates_.reset();
  for (const Variable& one : elsewhere_) require_gradients(one, true);
}

Payload ServerValues::hold(const HeldPush& push) {
  if (as<StepPush>(push.push).part < strategy_.num_replicas()) return store_.hold(push);
  return std::make_shared<StepFailure>(StepFailure{std::make_exception_ptr(
      PeerError("LS-PEER-MESSAGE", fmt::format("step {} was pushed as a part that no round has", push.step.step),
                "start all tasks with the same version of Lockstep"))});
}

Payload ServerValues::squares(const LogEntry& /*entry*/, std::span<const HeldPush> parts) {
  auto squares = std::make_shared<SquaresOfRound>();
  try {
    std::vector<const StepPush*> pushes;
    for (const HeldPush& one : parts) pushes.push_back(&as<StepPush>(one.push));
    squares->clip = pushes.empty() ? std::nullopt : pushes.front()->options.clip_global_norm;
    if (squares->clip) squares->squares = squares_of(pushes);
  } catch (...) {
    failed_(std::current_exception());
  }
  return squares;
}

void ServerValues::change(const LogEntry& entry) try {
  const GateHold hold(gate_, "Variable::assign");
  MessageReader from(as<std::string>(entry.payload), -1, "learning rates");
  rates_->take(from);
  if (from.at_end()) return;  // these alone
  state_.take(from.left(), -1);
  store_.note_all_changed();
} catch (...) {
  failed_(std::current_exception());
}

void ServerValues::freeze(const LogEntry& entry) {
  auto saved = std::make_shared<std::string>();
  try {
    const GateHold hold(gate_, "Variable::read");
    *saved = state_.changes();
  } catch (...) {
    failed_(std::current_exception());
  }
  frozen_ = {.cut = entry.number, .saved = std::move(saved)};
}

}  // namespace lockstep::internal::server
