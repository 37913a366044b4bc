// The meeting behind ReplicaContext::merge_call: it collects every replica's arguments, calls the function once, and
// hands out the result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/tensors_in.h"

namespace lockstep {

class ReplicaContext;
class Strategy;

namespace internal::inline replica {

template <class T>
struct IsPerReplica : std::false_type {};
template <class T>
struct IsPerReplica<PerReplica<T>> : std::true_type {};

class RandomScope;
class ReplicaGroup;

/// Marks the calling thread as outside of any replica while a merge function runs on it, all replicas at rest.
class MergeScope {
 public:
  explicit MergeScope(const ReplicaContext& context);
  ~MergeScope();
  MergeScope(const MergeScope&) = delete;
  MergeScope& operator=(const MergeScope&) = delete;
  Strategy& strategy() const;
  ReplicaId first_replica() const;

 private:
  const ReplicaContext& context_;
  const ReplicaContext* outer_;        // of the step that this thread was in
  const ReplicaGroup* outer_merging_;  // whose merge function this thread was in
  std::unique_ptr<RandomScope> random_;
};

/// Throws a UsageError where the size of a PerReplica that a merge function returned is not the number of replicas.
void check_merged_size(std::size_t size, std::size_t num_replicas);
/// "merge_call(type of the function)"
std::string describe_merge(const std::type_info& function);

template <class Fn, class... Args>
class MergeMeeting final : public Meeting {
  using Result = std::decay_t<std::invoke_result_t<Fn&, Strategy&, PerReplica<Args>...>>;
  static constexpr bool kVoid = std::is_void_v<Result>;
  using Stored = std::conditional_t<kVoid, char, Result>;

 public:
  template <class... Given>
  MergeMeeting(const ReplicaContext& context, Fn& fn, Given&&... args)
      : context_(context), fn_(fn), args_(std::forward<Given>(args)...) {}

  const char* what() const override { return "merge_call"; }
  /// The function's type and those of its arguments: the same in each process that runs this program.
  std::string_view name() const override { return typeid(MergeMeeting).name(); }
  std::string describe() const override { return describe_merge(typeid(Fn)); }

  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {once<&MergeMeeting::call>("call")};
    return all;
  }
  void call(std::span<Meeting* const> all) { call_with(all, std::index_sequence_for<Args...>()); }

  /// The result for replica `local_index`, with its own tensors. Called on that replica's thread.
  auto result(int64_t local_index) {
    if constexpr (IsPerReplica<Stored>::value) {
      return typename Stored::value_type(*(result_of_all_->begin() + local_index));
    } else if constexpr (!kVoid) {
      (void)local_index;
      return own_copy_of(*result_of_all_);
    }
  }

 private:
  template <std::size_t... I>
  void call_with(std::span<Meeting* const> all, std::index_sequence<I...>) {
    const MergeScope scope(context_);
    const auto invoke = [&] { return fn_(scope.strategy(), collect<I>(all, scope.first_replica())...); };
    std::shared_ptr<Stored> result;
    if constexpr (kVoid) {
      invoke();
    } else {
      result = std::make_shared<Stored>(invoke());
    }
    if constexpr (IsPerReplica<Stored>::value) {
      check_merged_size(result->size(), all.size());
    }
    // Here, while all replicas are at rest: one that goes on may write what it gave, and the others read the result.
    if constexpr (!kVoid) visit_tensors(*result, make_own);
    for (Meeting* meeting : all) static_cast<MergeMeeting*>(meeting)->result_of_all_ = result;
  }

  template <std::size_t I>
  static auto collect(std::span<Meeting* const> all, ReplicaId first) {
    std::vector<std::tuple_element_t<I, std::tuple<Args...>>> values;
    values.reserve(all.size());
    for (Meeting* meeting : all) values.push_back(std::move(std::get<I>(static_cast<MergeMeeting*>(meeting)->args_)));
    return PerReplica<std::tuple_element_t<I, std::tuple<Args...>>>(std::move(values), first);
  }

  const ReplicaContext& context_;
  Fn& fn_;
  std::tuple<Args...> args_;
  std::shared_ptr<Stored> result_of_all_;  // shared: a replica may read it after the leading meeting is gone
};

}  // namespace internal::replica
}  // namespace lockstep
