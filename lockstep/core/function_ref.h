// A reference to a callable that is borrowed for the length of a call. It is two pointers and allocates nothing.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::internal::inline core {

template <class Signature>
class FunctionRef;

/// Refers to a callable that must outlive it. Never store one beyond the call that it was passed to.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& function)  // NOLINT(google-explicit-constructor): that is its purpose
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

}  // namespace lockstep::internal::core
