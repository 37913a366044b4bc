// What users' functions must look like. A wrong one ends in one readable line of the compiler, which is its first
// error.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/optim/optimizer.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/run_args.h"
#include "lockstep/variable/replicated.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

namespace internal {

/// Stands for a value where the program does not compile anyway, so that no second error follows.
template <class T>
T never();

/// Whether `Fn` is a step function for the arguments of run(), given as a tuple of references; otherwise, what it
/// lacks.
template <class Fn, class Refs>
struct StepFunction;
template <class Fn, class... T>
struct StepFunction<Fn, std::tuple<const T&...>> {
  template <class Argument>
  using Component = std::remove_cvref_t<decltype(component_of(std::declval<const Argument&>(), int64_t{}))>;

  static constexpr bool kFits = std::is_invocable_v<Fn&, ReplicaContext&, const Component<T>&...>;
  static constexpr bool kLacksContext = !kFits && std::is_invocable_v<Fn&, const Component<T>&...>;
  static constexpr bool kLacksArguments =
      !kFits && !kLacksContext && sizeof...(T) > 0 && std::is_invocable_v<Fn&, ReplicaContext&>;
  static constexpr bool kWritesArguments =
      !kFits && !kLacksContext && !kLacksArguments && std::is_invocable_v<Fn&, ReplicaContext&, Component<T>&...>;
  static constexpr bool kOther = !kFits && !kLacksContext && !kLacksArguments && !kWritesArguments;
};

/// A module holder, or a shared_ptr to a module.
template <class M>
concept ModuleHandle = std::is_convertible_v<const M&, std::shared_ptr<torch::nn::Module>> || requires(const M& made) {
  made.is_empty();
  std::shared_ptr<torch::nn::Module>(made.ptr());
};

/// Depends on T and is false, for a static_assert in a template that must not be instantiated.
template <class T>
constexpr bool kNever = false;

}  // namespace internal

/// torch::save and torch::load of the library's handles do not compile; the compiler's message says what to write.
template <class M>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Replicated<M>&) {
  static_assert(internal::kNever<M>,
                "lockstep: a replicated module cannot be given to torch::save; save model.export_module(), or the "
                "tensors of model.state()");
  return archive;
}
template <class M>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, const Replicated<M>&) {
  static_assert(internal::kNever<M>,
                "lockstep: a replicated module cannot be given to torch::load; load a module or tensors by name, and "
                "call model.load(named_tensors)");
  return archive;
}
template <std::same_as<Optimizer> T>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const T&) {
  static_assert(internal::kNever<T>,
                "lockstep: an optimizer cannot be given to torch::save; save the tensors of optimizer.state()");
  return archive;
}
template <std::same_as<Optimizer> T>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, const T&) {
  static_assert(internal::kNever<T>,
                "lockstep: an optimizer cannot be given to torch::load; load tensors by name, and call "
                "optimizer.load(named_tensors)");
  return archive;
}

}  // namespace lockstep
