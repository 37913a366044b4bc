// Brings some calls of an operator to the listeners below autograd, at the price of a condition for all of its calls.
#pragma once

#include <torch/library.h>

#include <string>
#include <utility>

#include "lockstep/intercept/keys.h"

namespace lockstep::internal::inline intercept {

/// Registers the operator's kernel above autograd. As listen_above_autograd() it throws an InternalError where there is
/// one. `name` is that of an operator of aten, with the overload's after a point.
void register_above_autograd(const std::string& name, torch::CppFunction kernel);

/// The kernel above autograd of an operator, one of at::_ops: where kIsWanted(arguments...) holds, the call has the key
/// below autograd from here on. The arguments are not boxed, as for operators of a microsecond that would be felt.
template <class Operator, auto kIsWanted, class Schema = typename Operator::schema>
struct BringingKernel;
template <class Operator, auto kIsWanted, class Result, class... Arguments>
struct BringingKernel<Operator, kIsWanted, Result(Arguments...)> {
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    const c10::DispatchKeySet rest = keys_after(keys, kAboveAutograd);
    return Operator::redispatch(kIsWanted(arguments...) ? rest | c10::DispatchKeySet(kBelowAutograd) : rest,
                                std::forward<Arguments>(arguments)...);
  }
};

/// From now on the listeners below autograd hear those calls of an operator, made in an InterceptedScope, for which
/// kIsWanted(arguments...) holds. kIsWanted is a function that looks at the arguments and is cheap. Once for each
/// operator. Any thread may call. Claims the keys.
template <class Operator, auto kIsWanted>
void bring_below_autograd(const std::string& name) {
  register_above_autograd(name, torch::CppFunction(TORCH_FN((BringingKernel<Operator, kIsWanted>::call))));
}

}  // namespace lockstep::internal::intercept
