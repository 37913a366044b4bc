#include "lockstep/server/remote/chief_copy.h"

#include <cstddef>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline server {

ChiefCopy::ChiefCopy(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const Catalog& catalog, ChiefTask& chief,
                     int64_t counted)
    : strategy_(strategy),
      gate_(std::move(gate)),
      chief_(chief),
      schedules_(StrategyAccess::schedule_texts(strategy)),
      state_(strategy, catalog, -1, counted),
      sent_writes_(gate_->writes() - 1) {  // so that all is sent
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
}

void ChiefCopy::before_schedule() {
  require_known_schedules();
  if (gate_->writes() == sent_writes_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
}

void ChiefCopy::require_known_schedules() {
  const uint64_t writes = gate_->writes();
  if (writes == known_writes_) return;
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Optimizer::learning_rate");  // another thread may set a schedule
  if (StrategyAccess::schedule_texts(strategy_) == schedules_) {
    known_writes_ = writes;
    return;
  }
  throw UsageError(
      "LS-MADE-LATE",
      "the schedule of an optimizer's learning rate was set, changed or taken away inside coordinate(), and the "
      "servers, which are other processes, follow the one of before",
      "set schedules on all tasks before coordinate(), and leave them; where there is none, set_learning_rate holds");
}

void ChiefCopy::send_changes() {
  const uint64_t writes = gate_->writes();
  if (writes == sent_writes_) return;
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Variable::read");
  chief_.change(std::make_shared<std::string>(state_.changes()));
  sent_writes_ = writes;
}

void ChiefCopy::refresh() {
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
  if (chief_.position_sent() != known_) take_cut();
}

void ChiefCopy::at_cut(FunctionRef<void(const RunBegin&)> fn) {
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
  ChiefCut chief = take_cut();
  const int64_t counted = chief.counted;
  chief.position = 0;
  fn({.chief = std::move(chief), .applied = counted, .by_number = true});
}

ChiefCut ChiefCopy::take_cut() {
  CutWhole whole = chief_.cut();
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Variable::assign");
  // What several servers have, such as the number of steps, the first one says last.
  for (std::size_t server = whole.saved.size(); server-- > 0;) {
    const Payload& saved = whole.saved[server];
    if (saved) state_.take(as<std::string>(saved), static_cast<int32_t>(server));
  }
  known_ = whole.chief.position;
  return std::move(whole.chief);
}

}  // namespace lockstep::internal::server
