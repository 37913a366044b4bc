// Arguments and results of scheduled steps: what travels between the chief and workers.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/server/protocol/messages.h"

namespace lockstep {
class WorkerContext;
struct Batch;
}  // namespace lockstep

namespace lockstep::internal::inline server {

/// Nothing, a tensor, a text or a number. A bool is an int64_t.
using StepValue = std::variant<std::monostate, at::Tensor, std::string, int64_t, uint64_t, double>;

/// What a step may return, and what its function may take.
template <class T>
inline constexpr bool kIsStepValue =
    std::is_arithmetic_v<T> || std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::string>;

template <class T>
StepValue to_step_value(const T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else if constexpr (std::is_integral_v<T> && std::is_unsigned_v<T>) {
    return static_cast<uint64_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (kIsStepValue<T>) {
    return value;
  } else {
    return std::monostate();
  }
}

/// The error of a value that is something else than its step's function takes.
[[noreturn]] void throw_other_step_value();
/// The error of a step whose function does not say which arguments it takes, on tasks that are processes.
[[noreturn]] void throw_unknown_parameters();

/// The value as a T: numbers are converted as C++ does it.
template <class T>
T from_step_value(const StepValue& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<T>(*number);
    if (const auto* number = std::get_if<uint64_t>(&value)) return static_cast<T>(*number);
    if (const auto* number = std::get_if<double>(&value)) return static_cast<T>(*number);
  } else {
    if (const auto* held = std::get_if<T>(&value)) return *held;
  }
  throw_other_step_value();
}

using StepValues = std::vector<StepValue>;

/// The parameters of a function behind its WorkerContext, where they are known and may travel: not of a function
/// template.
template <class Signature>
struct StepParameters {
  static constexpr bool kAreKnown = false;
  static constexpr bool kAreBatch = false;  // it takes one, in an evaluation
};
template <class... Parameters>
struct StepParameters<std::tuple<Parameters...>> {
  static constexpr bool kAreKnown = (kIsStepValue<Parameters> && ...);
  static constexpr bool kAreBatch = std::is_same_v<std::tuple<Parameters...>, std::tuple<Batch>>;

  template <class Fn>
  static auto call(Fn& fn, WorkerContext& context, const StepValues& values) {
    if (values.size() != sizeof...(Parameters)) throw_other_step_value();
    return call(fn, context, values, std::index_sequence_for<Parameters...>());
  }

 private:
  template <class Fn, std::size_t... I>
  static auto call(Fn& fn, WorkerContext& context, const StepValues& values, std::index_sequence<I...>) {
    return fn(context, from_step_value<Parameters>(values[I])...);
  }
};
template <class R, class Context, class... P>
struct StepParameters<R (*)(Context, P...)> : StepParameters<std::tuple<std::decay_t<P>...>> {};
template <class R, class Context, class... P>
struct StepParameters<R (*)(Context, P...) noexcept> : StepParameters<std::tuple<std::decay_t<P>...>> {};
template <class C, class R, class Context, class... P>
struct StepParameters<R (C::*)(Context, P...)> : StepParameters<std::tuple<std::decay_t<P>...>> {};
template <class C, class R, class Context, class... P>
struct StepParameters<R (C::*)(Context, P...) const> : StepParameters<std::tuple<std::decay_t<P>...>> {};
template <class C, class R, class Context, class... P>
struct StepParameters<R (C::*)(Context, P...) noexcept> : StepParameters<std::tuple<std::decay_t<P>...>> {};
template <class C, class R, class Context, class... P>
struct StepParameters<R (C::*)(Context, P...) const noexcept> : StepParameters<std::tuple<std::decay_t<P>...>> {};

template <class Fn, class = void>
struct StepParametersOf : StepParameters<Fn> {};
template <class Fn>
struct StepParametersOf<Fn, std::void_t<decltype(&Fn::operator())>> : StepParameters<decltype(&Fn::operator())> {};

/// A tensor without dimensions, of float64.
at::Tensor tensor_of(double number);

/// What an evaluation's function gives for a part of a batch; undefined where it returns nothing.
template <class Fn>
at::Tensor value_of_part(Fn& fn, WorkerContext& context, const Batch& part) {
  using Result = std::decay_t<std::invoke_result_t<Fn&, WorkerContext&, const Batch&>>;
  if constexpr (std::is_void_v<Result>) {
    fn(context, part);
    return at::Tensor();
  } else if constexpr (std::is_arithmetic_v<Result>) {
    return tensor_of(static_cast<double>(fn(context, part)));
  } else {
    return at::Tensor(fn(context, part));
  }
}

/// A result to keep: tensors without a graph.
Payload kept_result(const at::Tensor& result);
template <class T>
Payload kept_result(const T& result) {
  return std::make_shared<StepValue>(to_step_value(result));
}

/// The result of `invoke`, as a payload.
template <class Invoke>
Payload result_of_call(const Invoke& invoke) {
  using Result = std::decay_t<decltype(invoke())>;
  if constexpr (std::is_void_v<Result>) {
    invoke();
    return nullptr;
  } else {
    return kept_result(static_cast<Result>(invoke()));
  }
}

/// Calls a step's function with arguments that came from another task.
template <class Fn>
Payload call_with_values(Fn& fn, WorkerContext& context, const StepValues& values) {
  using Parameters = StepParametersOf<Fn>;
  if constexpr (Parameters::kAreKnown) {
    return result_of_call([&] { return Parameters::call(fn, context, values); });
  } else if constexpr (std::is_invocable_v<Fn&, WorkerContext&>) {
    if (!values.empty()) throw_unknown_parameters();
    return result_of_call([&] { return fn(context); });
  } else {
    throw_unknown_parameters();
  }
}

}  // namespace lockstep::internal::server
