// How Strategy::run calls the step function, and Strategy::make_module the factory: templates that are too long for
// strategy.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
auto Strategy::run_step(Mode mode, ArgumentsAndFn&... arguments_and_fn) {
  static_assert(sizeof...(ArgumentsAndFn) > 0, "lockstep: run and evaluate need a step function");
  const auto all = std::tie(arguments_and_fn...);
  const auto args = internal::arguments_in(all);
  auto& fn = std::get<sizeof...(ArgumentsAndFn) - 1>(all);
  using Fn = std::remove_reference_t<decltype(fn)>;
  using Step = internal::StepFunction<Fn, std::remove_const_t<decltype(args)>>;
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
    const auto for_each = [&](const auto& visit) {
      std::apply([&](const auto&... each) { (visit(each), ...); }, args);
    };
    for_each([&](const auto& each) { internal::check_argument(name, each, num_local_replicas()); });
    if (mode == Mode::kStep && step() == 0) for_each([&](const auto& each) { watch(each); });
    std::string origins;
    std::vector<internal::BatchKey> keys;
    for_each([&](const auto& each) {
      internal::add_origin(origins, each);
      internal::BatchesIn<std::decay_t<decltype(each)>>::add(keys, each);
    });
    const internal::RunBatches given(batch_uses(), keys, mode == Mode::kEvaluate);
    const int64_t all_replicas = num_replicas();  // asked in the step, it would be the program that asks
    const auto call = [&](ReplicaContext& context, int64_t r) -> decltype(auto) {
      return std::apply(
          [&](const auto&... each) -> decltype(auto) {
            internal::BatchShare share;
            (internal::add_share(share, each, r, all_replicas), ...);
            set_share(context, share);
            return fn(context, internal::component_of(each, r)...);
          },
          args);
    };
    internal::StepResults<std::decay_t<decltype(call(std::declval<ReplicaContext&>(), int64_t{}))>> results(
        num_local_replicas());
    run_replicas(mode, origins, [&](ReplicaContext& context, int64_t r) {
      results.keep(r, [&]() -> decltype(auto) { return call(context, r); });
    });
    return results.take(first_replica());
  } else {
    return PerReplica<at::Tensor>();
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
