// How the arguments of run() reach the replicas: a PerReplica gives each its component, anything else reaches each
// whole, and a tuple counts as several arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/replica/merge_meeting.h"

namespace lockstep::internal {

/// Throws a UsageError where a PerReplica argument of `call` has another number of values than the process has
/// replicas.
void check_argument_size(const char* call, std::size_t size, int64_t num_local_replicas);

/// Throws a UsageError where parts have different global sizes, or one that is smaller than the number of their
/// samples. A global size of 0 means that none was given; the calls that need it check it.
void check_batches(const char* call, const PerReplica<Batch>& batches);

/// What the Batch arguments of a run say about one replica's share of the work.
struct BatchShare {
  int batches = 0;
  int64_t part = 0;
  int64_t whole = 0;
};

/// The part of one argument that local replica r gets.
template <class T>
const T& component_of(const T& argument, int64_t) {
  return argument;
}
template <class T>
const T& component_of(const PerReplica<T>& argument, int64_t r) {
  int64_t padding = 0;
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

}  // namespace lockstep::internal
