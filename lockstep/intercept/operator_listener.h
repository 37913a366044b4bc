// Who hears the operator calls of a step: the contract of a listener, the order of listeners, and what a call looks
// like to them.
//
// Above autograd an operator has at most one listener, listen_above_autograd(): it hears each call of that operator on
// the threads of an InterceptedScope (intercept/scopes.h).
//
// Below autograd a call goes through the listeners in this order, each of which may compute its result in place of all
// after it:
//
//   1. those of the ListeningScopes of the calling thread, the newest scope first. They hear every call of the thread.
//   2. the standing ones, by rank (ListenerRank), which live as long as the process. They hear the calls that come here
//      for any reason: because a scope is open, because a tensor has no memory, or because bring_below_autograd() has
//      brought them. So the first ones see what the later ones answer, as if LibTorch had computed it.
//   3. LibTorch's kernel.
//
// A recorder of a step is a listener of the first kind. It sees what autograd hands down: operators that LibTorch makes
// of others are taken apart, random ones have the replica's generator, and a product that the library computes, or
// keeps as factors, is a call like any other. It should keep no reference to a tensor beyond the call, except a weak
// one to the storage: autograd takes a gradient over that nobody else holds, and copies it otherwise.
//
// Where nobody listens, an operator call costs nothing more: no kernel of this folder is called. An operator that is
// listened to above autograd pays for its boxed arguments and one virtual call, and one that is brought below autograd
// for its condition, which the compiler puts into the kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::internal::inline intercept {

class ListeningScope;

/// The standing listeners below autograd, in the order in which they hear a call.
enum class ListenerRank : uint8_t {
  kFactoredGradients,     // answers the product that is a large weight's gradient by a tensor without memory
  kTensorsWithoutMemory,  // gives the tensors of a call memory, or answers it without
  kFewSamplesProducts     // computes products of few samples
};
inline constexpr std::size_t kNumListenerRanks = 3;

/// One call of an operator, on its way through the listeners of one key. Lives as long as the call.
class OperatorCall {
 public:
  /// Above autograd; for this folder. `keys` are those whose kernels come after all listeners.
  OperatorCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack)
      : op_(op), keys_(keys), stack_(stack) {}
  /// Below autograd, where `scope` is the thread's newest.
  OperatorCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack, ListeningScope* scope)
      : op_(op), keys_(keys), stack_(stack), scope_(scope), rank_(0) {}
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

  const c10::OperatorHandle& op() const { return op_; }
  /// "aten::add", without the overload's name.
  const std::string& name() const { return op_.operator_name().name; }
  const std::string& overload() const { return op_.operator_name().overload_name; }

  /// The arguments, in the order of the schema. Above autograd a listener may change them. Until the call is answered.
  std::span<c10::IValue> inputs() {
    const std::size_t count = op_.schema().arguments().size();
    return {stack_.data() + (stack_.size() - count), count};
  }

  /// Hands the call to the listeners after this one, and then to LibTorch; passes on what they throw. Does nothing
  /// where the call is answered.
  void go_on();
  /// Answers the call of an operator with one result in place of all after this listener.
  void answer(c10::IValue result);
  bool is_answered() const { return is_answered_; }

  /// The results, once the call is answered.
  std::span<const c10::IValue> outputs() const {
    const std::size_t count = op_.schema().returns().size();
    return {stack_.data() + (stack_.size() - count), count};
  }

 private:
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  // Who is next below autograd: the listeners of these scopes, and the standing ones from this rank on.
  ListeningScope* scope_ = nullptr;
  std::size_t rank_ = kNumListenerRanks;
  bool is_computed_ = false;  // LibTorch's kernel was called
  bool is_answered_ = false;
};

/// Hears operator calls.
class OperatorListener {
 public:
  /// Called on the thread that calls the operator, before it is computed. With call.go_on() the listener sees inputs
  /// before and outputs after, with call.answer() it replaces the result. One that does neither leaves the call to
  /// those after it, and has seen the inputs only.
  ///
  /// May throw: the exception reaches whoever has called the operator, like one of LibTorch's. Must pass on what
  /// go_on() throws. Below autograd the operators that hear() itself calls on this thread, and those that kernels call,
  /// are not heard by the listeners of scopes: they are part of this call. Autograd records nothing there, so a
  /// result's graph is LibTorch's.
  virtual void hear(OperatorCall& call) = 0;

 protected:
  ~OperatorListener() = default;
};

/// From now on `listener`, which is never destroyed, hears the calls of `op` above autograd. An InternalError where the
/// operator has a listener there, or is brought below autograd. Any thread may call. Claims the keys.
void listen_above_autograd(const c10::OperatorHandle& op, OperatorListener& listener);

/// From now on `listener`, which is never destroyed, hears below autograd, at its rank, the calls of `operators`, or of
/// all where that is empty. Nothing where the rank has a listener. Any thread may call. Claims the keys.
void listen_below_autograd(ListenerRank rank, OperatorListener& listener,
                           std::vector<c10::OperatorHandle> operators = {});

}  // namespace lockstep::internal::intercept
