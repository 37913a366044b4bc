// What stands before the calls of a strategy whose variables other threads change too.
#pragma once

#include <memory>
#include <utility>

namespace lockstep::internal::inline replica {

/// Lets one thread at a time make calls from outside of steps. Calls of one thread nest.
class CallGate {
 public:
  virtual ~CallGate() = default;
  /// Waits until the thread may make the call, by its name ("Variable::assign"); throws a UsageError for a call that
  /// the strategy does not have.
  virtual void enter(const char* call) = 0;
  virtual void leave() noexcept = 0;
};

/// Holds a gate, if there is one.
class GateHold {
 public:
  GateHold(std::shared_ptr<CallGate> gate, const char* call) : gate_(std::move(gate)) {
    if (gate_) gate_->enter(call);
  }
  ~GateHold() {
    if (gate_) gate_->leave();
  }
  GateHold(const GateHold&) = delete;
  GateHold& operator=(const GateHold&) = delete;

 private:
  const std::shared_ptr<CallGate> gate_;
};

}  // namespace lockstep::internal::replica
