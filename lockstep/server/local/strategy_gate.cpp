#include "lockstep/server/local/strategy_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

namespace {

thread_local bool is_task = false;

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
          ? "use coordinator.evaluate(data, fn)"
          : "write the step as strategy.step(name, fn), call ctx.push() in it, and schedule it: "
            "coordinator.schedule(step)");
}

}  // namespace

void StrategyGate::enter(const char* call) {
  const std::thread::id self = std::this_thread::get_id();
  if (!is_task && owner_.load() != self) {
    refuse_what_there_is_not(call);
    std::function<void()> drain;
    std::function<void()> catch_up;
    {
      const std::lock_guard<std::mutex> lock(waits_mutex_);
      drain = drain_;
      catch_up = catch_up_;
    }
    if (!only_reads(call)) {
      if (drain) drain();
      writes_.fetch_add(1, std::memory_order_release);
    }
    if (catch_up) catch_up();
  }
  mutex_.lock();
  ++depth_;
  owner_.store(self);
}

void StrategyGate::leave() noexcept {
  if (--depth_ == 0) owner_.store(std::thread::id());
  mutex_.unlock();
}

void StrategyGate::set_waits(std::function<void()> drain, std::function<void()> catch_up) {
  const std::lock_guard<std::mutex> lock(waits_mutex_);
  drain_ = std::move(drain);
  catch_up_ = std::move(catch_up);
}

TaskScope::TaskScope() : outer_(std::exchange(is_task, true)) {}

TaskScope::~TaskScope() { is_task = outer_; }

}  // namespace lockstep::internal::server
