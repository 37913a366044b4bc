#include "lockstep/intercept/below_autograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/intercept/keys.h"
#include "lockstep/intercept/operator_listener.h"
#include "lockstep/intercept/scopes.h"

namespace lockstep::internal::inline intercept {

namespace {

/// A listener that lives as long as the process, and what it hears.
struct StandingListener {
  OperatorListener& listener;
  const std::vector<c10::OperatorHandle> operators;  // all where empty

  bool hears(const c10::OperatorHandle& op) const {
    // Each operator has one schema, and it stays where it is.
    return operators.empty() || std::any_of(operators.begin(), operators.end(),
                                            [&](const auto& one) { return &one.schema() == &op.schema(); });
  }
};

// By rank. Each is written once, when all that it points to is there.
std::array<std::atomic<const StandingListener*>, kNumListenerRanks> standing{};

std::atomic<int64_t> num_unheard{0};

void hear_below_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const DeafScope part_of_this_call;
  ListeningScope* const newest = part_of_this_call.newest();
  if (!newest && part_of_this_call.was_included()) num_unheard.fetch_add(1, std::memory_order_relaxed);
  OperatorCall(op, keys_after(keys, kBelowAutograd), *stack, newest).go_on();
}

}  // namespace

void OperatorCall::go_on() {
  // A listener that goes on comes here again, one that leaves the call to the others returns to here.
  while (!is_answered_) {
    if (scope_) {
      OperatorListener& listener = scope_->listener_;
      scope_ = scope_->outer_;
      listener.hear(*this);
    } else if (rank_ < kNumListenerRanks) {
      const StandingListener* const one = standing[rank_++].load(std::memory_order_acquire);
      if (one && one->hears(op_)) one->listener.hear(*this);
    } else if (!std::exchange(is_computed_, true)) {
      op_.redispatchBoxed(keys_, &stack_);
      is_answered_ = true;
    } else {
      throw InternalError("LS-INTERNAL", fmt::format("a listener has not passed on what {} threw", name()),
                          "please report it");
    }
  }
}

void OperatorCall::answer(c10::IValue result) {
  torch::jit::drop(stack_, op_.schema().arguments().size());
  torch::jit::push(stack_, std::move(result));
  is_answered_ = true;
}

void listen_below_autograd(ListenerRank rank, OperatorListener& listener, std::vector<c10::OperatorHandle> operators) {
  claim_dispatch_keys();
  auto added = std::make_unique<const StandingListener>(listener, std::move(operators));
  const StandingListener* none = nullptr;
  auto& place = standing[static_cast<std::size_t>(rank)];
  if (place.compare_exchange_strong(none, added.get(), std::memory_order_acq_rel)) static_cast<void>(added.release());
}

int64_t num_calls_unheard() { return num_unheard.load(std::memory_order_relaxed); }

torch::CppFunction fallback_below_autograd() {
  return torch::CppFunction::makeFromBoxedFunction<&hear_below_autograd>();
}

}  // namespace lockstep::internal::intercept
