#include "lockstep/server/local/strategy_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

namespace {

thread_local Caller caller = Caller::kProgram;

/// Calls that only read: they see one state of the servers, whichever steps are under way.
bool only_reads(std::string_view call) {
  constexpr std::array<std::string_view, 11> kReads{
      "Variable::read",           "Variable::components",      "Replicated::state",      "Strategy::variables",
      "Optimizer::momentum",      "Replicated::export_module", "Optimizer::state",       "Strategy::state_items",
      "Optimizer::learning_rate", "Strategy::split",           "Optimizer::weight_decay"};
  return std::ranges::find(kReads, call) != kReads.end();
}

void refuse_what_there_is_not(std::string_view call) {
  constexpr std::array<std::string_view, 5> kRefused{"Strategy::run", "Strategy::evaluate", "Strategy::reduce",
                                                     "Strategy::gather", "Strategy::broadcast"};
  if (std::ranges::find(kRefused, call) == kRefused.end()) return;
  throw UsageError(
      "LS-SCHEDULE",
      fmt::format("{} was called on a ParameterServerStrategy, whose workers run steps by themselves", call),
      call == "Strategy::evaluate"
          ? "let the workers evaluate: coordinator.evaluate(data, fn); or evaluate what model.export_module() gives"
          : "write the step as strategy.step(name, fn), call ctx.push() in it, and schedule it: "
            "coordinator.schedule(step)");
}

}  // namespace

void StrategyGate::enter(const char* call) {
  refuse_in_scheduled_step(call);
  const std::thread::id self = std::this_thread::get_id();
  const bool is_programs = caller == Caller::kProgram && owner_.load() != self;
  const bool may_write = is_programs && !only_reads(call);
  if (is_programs) refuse_what_there_is_not(call);
  for (;;) {
    if (is_programs) {
      const std::shared_lock<std::shared_mutex> waiting(waits_mutex_);
      if (may_write && waits_.drain) waits_.drain();
      const std::function<void()>& wait = may_write ? waits_.catch_up : waits_.begin_read;
      if (wait) wait();
    }
    mutex_.lock();
    const std::thread::id holder = holder_.load();
    if (!may_write || holder == std::thread::id() || holder == self) break;
    mutex_.unlock();  // an evaluation began after the wait
  }
  ++depth_;
  owner_.store(self);
  is_writing_ = is_writing_ || may_write;
  if (is_programs && !may_write) {
    const std::shared_lock<std::shared_mutex> waiting(waits_mutex_);
    if (waits_.end_read) waits_.end_read();
  }
}

void StrategyGate::leave() noexcept {
  if (--depth_ == 0) {
    owner_.store(std::thread::id());
    // Counted when the values are there, so that nobody takes old ones for new.
    if (std::exchange(is_writing_, false)) writes_.fetch_add(1, std::memory_order_release);
  }
  mutex_.unlock();
}

void StrategyGate::set_waits(Waits waits) {
  const std::lock_guard<std::shared_mutex> lock(waits_mutex_);
  waits_ = std::move(waits);
}

void StrategyGate::hold_writes() {
  holder_.store(std::this_thread::get_id());
  const std::lock_guard<std::recursive_mutex> after_who_has_passed(mutex_);
}

void StrategyGate::require_not_inside(const char* call) const {
  if (owner_.load() != std::this_thread::get_id()) return;
  throw UsageError("LS-NESTED-CALL", fmt::format("{} was called inside another call on the same strategy", call),
                   "let the outer call end first: the workers wait for it");
}

CallerScope::CallerScope(Caller now) : outer_(std::exchange(caller, now)) {}

CallerScope::~CallerScope() { caller = outer_; }

void refuse_in_scheduled_step(const char* call) {
  if (caller != Caller::kStep) return;
  throw UsageError("LS-INSIDE-STEP", fmt::format("{} was called inside a scheduled step", call),
                   "inside a step use its context: model(ctx), variable.value(ctx), variable.assign(ctx, value), "
                   "table.look_up(ctx, ids)");
}

}  // namespace lockstep::internal::server
