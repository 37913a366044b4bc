// How the arguments of run() reach the replicas: a PerReplica gives each its component, anything else reaches each
// whole, and a tuple counts as several arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/replica/loss/batch_uses.h"
#include "lockstep/replica/merge_meeting.h"

namespace lockstep::internal::inline strategy {

/// Throws a UsageError where a PerReplica argument of `call` has another number of values than the process has
/// replicas.
void check_argument_size(const char* call, std::size_t size, int64_t num_local_replicas);

/// Throws a UsageError where parts have different global sizes, or one that is smaller than the number of their
/// samples. A global size of 0 means that none was given; the calls that need it check it.
void check_batches(const char* call, const PerReplica<Batch>& batches);

/// Adds what a part of a batch is known by (key_of).
void add_key(std::vector<BatchKey>& keys, const Batch& batch);

/// What the Batch arguments of a run say about one replica's share of the work.
struct BatchShare {
  int batches = 0;
  int64_t part = 0;
  int64_t whole = 0;
  int64_t padding = 0;
};

/// The part of one argument that local replica r gets.
template <class T>
const T& component_of(const T& argument, int64_t) {
  return argument;
}
template <class T>
const T& component_of(const PerReplica<T>& argument, int64_t r) {
  return *(argument.begin() + r);
}

template <class T>
void check_argument(const char* call, const T& argument, int64_t num_local_replicas) {
  if constexpr (IsPerReplica<T>::value) check_argument_size(call, argument.size(), num_local_replicas);
  if constexpr (std::is_same_v<T, PerReplica<Batch>>) check_batches(call, argument);
}

template <class T>
void add_share(BatchShare& share, const T& argument, int64_t r, int64_t num_replicas) {
  if constexpr (std::is_same_v<T, PerReplica<Batch>>) {
    const Batch& batch = component_of(argument, r);
    share = {share.batches + 1, batch.samples(), batch.global_size, batch.padding};
  } else if constexpr (std::is_same_v<T, Batch>) {
    // Every replica works on the same samples, so its weight is 1 / num_replicas: each sample counts once in all.
    share = {share.batches + 1, argument.samples(), argument.samples() * num_replicas, argument.padding};
  }
}

/// Adds what workers compare before a run: which global batch an argument is a part of (Batch::origin).
void add_origin(std::string& origins, const PerReplica<Batch>& batches);
template <class T>
void add_origin(std::string& /*origins*/, const T& /*argument*/) {}

/// Finds the batches in an argument, also in containers of the standard library, and adds what they are known by.
/// kPossible: whether there can be any. Containers of other types are not walked.
template <class T>
struct BatchesIn {
  static constexpr bool kPossible = false;
  static void add(std::vector<BatchKey>& /*keys*/, const T& /*value*/) {}
};
template <>
struct BatchesIn<Batch> {
  static constexpr bool kPossible = true;
  static void add(std::vector<BatchKey>& keys, const Batch& batch) { add_key(keys, batch); }
};
template <class T>
struct BatchesInEach {
  static constexpr bool kPossible = BatchesIn<T>::kPossible;
  template <class Values>
  static void add([[maybe_unused]] std::vector<BatchKey>& keys, [[maybe_unused]] const Values& values) {
    if constexpr (kPossible) {
      for (const auto& value : values) BatchesIn<T>::add(keys, value);
    }
  }
};
template <class T>
struct BatchesIn<PerReplica<T>> : BatchesInEach<T> {};
template <class T>
struct BatchesIn<std::vector<T>> : BatchesInEach<T> {};
template <class T, std::size_t N>
struct BatchesIn<std::array<T, N>> : BatchesInEach<T> {};
template <class T>
struct BatchesIn<std::optional<T>> {
  static constexpr bool kPossible = BatchesIn<T>::kPossible;
  static void add(std::vector<BatchKey>& keys, const std::optional<T>& value) {
    if (value) BatchesIn<T>::add(keys, *value);
  }
};
template <class A, class B>
struct BatchesIn<std::pair<A, B>> {
  static constexpr bool kPossible = BatchesIn<std::remove_const_t<A>>::kPossible || BatchesIn<B>::kPossible;
  static void add(std::vector<BatchKey>& keys, const std::pair<A, B>& both) {
    BatchesIn<std::remove_const_t<A>>::add(keys, both.first);
    BatchesIn<B>::add(keys, both.second);
  }
};
template <class Key, class T>
struct BatchesIn<std::map<Key, T>> : BatchesInEach<std::pair<const Key, T>> {};
template <class... T>
struct BatchesIn<std::tuple<T...>> {
  static constexpr bool kPossible = (BatchesIn<std::decay_t<T>>::kPossible || ...);
  static void add(std::vector<BatchKey>& keys, const std::tuple<T...>& values) {
    std::apply([&](const auto&... each) { (BatchesIn<std::decay_t<decltype(each)>>::add(keys, each), ...); }, values);
  }
};

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

/// The arguments as a tuple of references: a tuple is expanded, one level.
template <class Args>
auto as_tuple(const Args& args) {
  if constexpr (IsTuple<Args>::value) {
    return std::apply([](const auto&... each) { return std::tuple<const decltype(each)&...>(each...); }, args);
  } else {
    return std::tuple<const Args&>(args);
  }
}

/// The arguments of a run, which stand before its step function, expanded.
template <class... All>
auto arguments_in(const std::tuple<All&...>& all) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple_cat(as_tuple(std::as_const(std::get<I>(all)))...);
  }
  (std::make_index_sequence<sizeof...(All) - 1>());
}

}  // namespace lockstep::internal::strategy
