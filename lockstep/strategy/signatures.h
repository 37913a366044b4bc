// What users' functions must look like. A wrong one ends in one readable line of the compiler, which is its first
// error.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/strategy/run_args.h"
#include "lockstep/variable/module/replicated.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

namespace internal::inline strategy {

/// Stands for a value where the program does not compile anyway, so that no second error follows.
template <class T>
T never();

/// Whether `Fn` has one signature. A generic lambda has none: asking whether it takes some arguments compiles its body
/// with them, and where that fails, the program does not compile.
template <class Fn>
concept OneSignature = !std::is_class_v<Fn> || requires {
  typename std::type_identity_t<decltype(&Fn::operator())>;
};

/// Whether `Fn` is a step function for the arguments of run(), given as a tuple of references; otherwise, what it
/// lacks, if that can be found out.
template <class Fn, class Refs>
struct StepFunction;
template <class Fn, class... T>
struct StepFunction<Fn, std::tuple<const T&...>> {
  template <class Argument>
  using Component = std::remove_cvref_t<decltype(component_of(std::declval<const Argument&>(), int64_t{}))>;

  static constexpr bool kFits = std::is_invocable_v<Fn&, ReplicaContext&, const Component<T>&...>;

  /// Whether it takes these arguments instead. `if constexpr`, because an operand of && is instantiated in any case.
  template <class... Other>
  static constexpr bool takes_instead() {
    if constexpr (!kFits && OneSignature<Fn>) {
      return std::is_invocable_v<Fn&, Other...>;
    } else {
      return false;
    }
  }
  static constexpr bool kLacksContext = takes_instead<const Component<T>&...>();
  static constexpr bool kLacksArguments = !kLacksContext && sizeof...(T) > 0 && takes_instead<ReplicaContext&>();
  static constexpr bool kWritesArguments =
      !kLacksContext && !kLacksArguments && takes_instead<ReplicaContext&, Component<T>&...>();
  static constexpr bool kOther = !kFits && !kLacksContext && !kLacksArguments && !kWritesArguments;
};

/// What run() gives for what a step returns: a PerReplica, or for a tuple a tuple of them.
template <class Result>
struct OfReplicas {
  using Value = Result;  // as it is kept for each replica
  static auto from(std::vector<Value> values, ReplicaId first) { return PerReplica<Value>(std::move(values), first); }
};
template <class... T>
struct OfReplicas<std::tuple<T...>> {
  using Value = std::tuple<std::remove_cvref_t<T>...>;
  static auto from(std::vector<Value> values, ReplicaId first) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tuple<PerReplica<std::remove_cvref_t<T>>...>(taken<I>(values, first)...);
    }
    (std::index_sequence_for<T...>());
  }

 private:
  template <std::size_t I>
  static auto taken(std::vector<Value>& values, ReplicaId first) {
    using One = std::tuple_element_t<I, Value>;
    std::vector<One> all;
    all.reserve(values.size());
    for (Value& value : values) all.push_back(std::move(std::get<I>(value)));
    return PerReplica<One>(std::move(all), first);
  }
};

/// What the replicas' calls of a step return, until all have returned.
template <class Result>
class StepResults {
  using All = OfReplicas<Result>;
  struct Slot {  // its own struct, so that replicas never share a word, as in a vector of bool
    std::optional<typename All::Value> value;
  };

 public:
  explicit StepResults(int64_t replicas) : slots_(static_cast<std::size_t>(replicas)) {}
  template <class Call>
  void keep(int64_t r, const Call& call) {
    slots_[static_cast<std::size_t>(r)].value.emplace(call());
  }
  auto take(ReplicaId first) {
    std::vector<typename All::Value> results;
    results.reserve(slots_.size());
    for (Slot& slot : slots_) results.push_back(std::move(*slot.value));  // NOLINT(bugprone-unchecked-optional-access)
    return All::from(std::move(results), first);
  }

 private:
  std::vector<Slot> slots_;  // each used by its replica's thread
};
template <>
class StepResults<void> {
 public:
  explicit StepResults(int64_t /*replicas*/) {}
  template <class Call>
  void keep(int64_t /*r*/, const Call& call) {
    call();
  }
  void take(ReplicaId /*first*/) {}
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

}  // namespace internal::strategy

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
