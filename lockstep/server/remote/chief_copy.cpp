#include "lockstep/server/remote/chief_copy.h"

#include <cstddef>
#include <string>
#include <utility>

namespace lockstep::internal::inline server {

ChiefCopy::ChiefCopy(const RemoteSetup& setup, ChiefTask& chief, int64_t counted)
    : strategy_(setup.strategy),
      gate_(setup.gate),
      chief_(chief),
      rates_(setup.strategy, setup.parts(), !setup.owns_schedules),
      state_(setup.strategy, setup.catalog, -1, counted),
      sent_writes_(gate_->writes() - 1) {  // so that all is sent
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
}

void ChiefCopy::before_schedule() {
  const int64_t scheduled = ++scheduled_;
  if (gate_->writes() == sent_writes_ && !rates_.is_due(scheduled)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  send_changes();
}

void ChiefCopy::send_changes() {
  const uint64_t writes = gate_->writes();
  const int64_t scheduled = scheduled_;
  const bool has_changed = writes != sent_writes_;
  if (!has_changed && !rates_.is_due(scheduled)) return;
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Variable::read");
  auto bytes = std::make_shared<std::string>();
  rates_.put(*bytes, scheduled);
  if (has_changed) *bytes += state_.changes();
  chief_.change(std::move(bytes));
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
