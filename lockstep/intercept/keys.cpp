#include "lockstep/intercept/keys.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/intercept/below_autograd.h"
#include "lockstep/intercept/bring_below.h"
#include "lockstep/intercept/operator_listener.h"

namespace lockstep::internal::inline intercept {

namespace {

/// Gives `key` its fallback, for good.
torch::Library* register_fallback(c10::DispatchKey key, torch::CppFunction fallback) {
  // Asked first, because LibTorch's own error, which is thrown while a registration is made, names files of LibTorch.
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) {
    throw UsageError(
        "LS-DISPATCH-KEY",
        fmt::format("another library of this process, or a second copy of Lockstep, has registered a fallback under "
                    "LibTorch's dispatch key {}, with which Lockstep follows a step's operators",
                    c10::toString(key)),
        "leave the other library out of this process, and link Lockstep once, as a shared library");
  }
  auto* const library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(std::move(fallback));
  return library;
}

/// Hands the boxed calls of one operator to its listener.
class HandOver final : public c10::OperatorKernel {
 public:
  explicit HandOver(OperatorListener& listener) : listener_(listener) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    OperatorCall call(op, keys_after(keys, kAboveAutograd), *stack);
    listener_.hear(call);
    call.go_on();
  }

 private:
  OperatorListener& listener_;
};

}  // namespace

void claim_dispatch_keys() {
  // Each tries again after it has thrown.
  [[gnu::used]] static auto* const above = register_fallback(kAboveAutograd, torch::CppFunction::makeFallthrough());
  [[gnu::used]] static auto* const below = register_fallback(kBelowAutograd, fallback_below_autograd());
}

void register_above_autograd(const std::string& name, torch::CppFunction kernel) {
  claim_dispatch_keys();
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;  // guarded by mutex
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", kAboveAutograd, __FILE__, __LINE__);
  const std::lock_guard<std::mutex> lock(mutex);
  if (names->contains(name)) {
    throw InternalError("LS-INTERNAL", fmt::format("operator {} has two listeners above autograd", name),
                        "please report it");
  }
  library->impl(name.c_str(), std::move(kernel));
  names->insert(name);  // last: whoever registers may try again after a failure
}

void listen_above_autograd(const c10::OperatorHandle& op, OperatorListener& listener) {
  const c10::OperatorName& name = op.operator_name();
  // Without the namespace, which the registration has.
  const std::string short_name = name.name.substr(name.name.find("::") + 2);
  register_above_autograd(name.overload_name.empty() ? short_name : short_name + "." + name.overload_name,
                          torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HandOver>(listener)));
}

}  // namespace lockstep::internal::intercept
