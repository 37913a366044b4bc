// How Strategy::run calls the step function, and Strategy::make_module the factory: templates that are too long for
// strategy.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/strategy/strategy.h"

namespace lockstep {

template <class... ArgumentsAndFn>
auto Strategy::expand_and_run(Mode mode, ArgumentsAndFn&... arguments_and_fn) {
  static_assert(sizeof...(ArgumentsAndFn) > 0, "lockstep: run and evaluate need a step function");
  constexpr std::size_t kArguments = sizeof...(ArgumentsAndFn) - 1;
  const auto all = std::tie(arguments_and_fn...);
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return check_and_run(mode, std::tuple_cat(internal::as_tuple(std::as_const(std::get<I>(all)))...),
                         std::get<kArguments>(all));
  }
  (std::make_index_sequence<kArguments>());
}

template <class Refs, class Fn>
auto Strategy::check_and_run(Mode mode, const Refs& args, Fn& fn) {
  using Step = internal::StepFunction<Fn, Refs>;
  static_assert(
      !Step::kLacksContext,
      "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): its first parameter "
      "must be a ReplicaContext&");
  static_assert(
      !Step::kLacksArguments,
      "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it has no parameter "
      "for what run was given before it");
  static_assert(!Step::kWritesArguments,
                "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it gets arguments "
                "by const reference, or takes them by value");
  static_assert(!Step::kOther,
                "lockstep: the step function must be callable as fn(ReplicaContext&, const Batch&): it stands last in "
                "run, takes the context by reference, and has one parameter for each argument before it (for a "
                "PerReplica its component, for a tuple each element)");
  if constexpr (Step::kFits) {
    const char* const name = mode == Mode::kEvaluate ? "evaluate" : "run";
    const int64_t replicas = num_local_replicas();
    const int64_t all_replicas = num_replicas();
    std::apply([&](const auto&... each) { (internal::check_argument(name, each, replicas), ...); }, args);
    if (mode == Mode::kStep && step() == 0) std::apply([&](const auto&... each) { (watch(each), ...); }, args);
    std::string origins;
    std::apply([&](const auto&... each) { (internal::add_origin(origins, each), ...); }, args);
    std::vector<internal::BatchKey> keys;
    std::apply([&](const auto&... each) { (internal::BatchesIn<std::decay_t<decltype(each)>>::add(keys, each), ...); },
               args);
    const internal::RunBatches given(batch_uses(), keys, mode == Mode::kEvaluate);
    return run_and_collect(mode, origins, [&](ReplicaContext& context, int64_t r) -> decltype(auto) {
      return std::apply(
          [&](const auto&... each) -> decltype(auto) {
            internal::BatchShare share;
            (internal::add_share(share, each, r, all_replicas), ...);
            set_share(context, share);
            return fn(context, internal::component_of(each, r)...);
          },
          args);
    });
  } else {
    return PerReplica<at::Tensor>();
  }
}

template <class Call>
auto Strategy::run_and_collect(Mode mode, std::string_view origins, const Call& call) {
  using Result = std::decay_t<std::invoke_result_t<const Call&, ReplicaContext&, int64_t>>;
  if constexpr (std::is_void_v<Result>) {
    run_replicas(mode, origins, [&](ReplicaContext& context, int64_t r) { call(context, r); });
  } else {
    using All = internal::OfReplicas<Result>;
    struct Slot {  // its own struct, so that replicas never share a word, as in a vector of bool
      std::optional<typename All::Value> value;
    };
    std::vector<Slot> slots(static_cast<std::size_t>(num_local_replicas()));
    run_replicas(mode, origins, [&](ReplicaContext& context, int64_t r) {
      slots[static_cast<std::size_t>(r)].value.emplace(call(context, r));
    });
    std::vector<typename All::Value> results;
    results.reserve(slots.size());
    for (Slot& slot : slots) results.push_back(std::move(*slot.value));  // NOLINT(bugprone-unchecked-optional-access)
    return All::from(std::move(results), first_replica());
  }
}

template <class M, class Factory>
auto Strategy::make_module_from(Factory factory, const ModuleOptions& options, const std::source_location& place) {
  constexpr bool kByValue = std::is_base_of_v<torch::nn::Module, M>;
  static_assert(!kByValue,
                "lockstep: the factory of make_module returns a module by value; return a std::shared_ptr to it, as "
                "std::make_shared<Net>(), or the holder that TORCH_MODULE makes");
  static_assert(kByValue || internal::ModuleHandle<M>,
                "lockstep: the factory of make_module must return a module holder or a std::shared_ptr to a module");
  if constexpr (internal::ModuleHandle<M>) {
    auto modules = std::make_shared<std::vector<M>>();
    const auto kept = std::make_shared<Factory>(std::move(factory));  // shared: it may be move-only
    auto binding = bind_modules(
        options,
        [&] {
          modules->push_back((*kept)());
          return internal::module_in(modules->back());
        },
        place);
    return Replicated<M>(std::move(binding), std::move(modules), [kept] { return (*kept)(); });
  } else {
    return internal::never<Replicated<std::shared_ptr<torch::nn::Module>>>();
  }
}

}  // namespace lockstep
