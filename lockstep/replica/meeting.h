// A meeting point: what all replicas of a step do together, as a list of stages, and how they see that they make the
// same call.
#pragma once

#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep::internal::inline replica {

class Meeting;

/// What a stage is given.
struct StageCall {
  std::span<Meeting* const> all;  // all[i] is local replica i's meeting; all have the leading meeting's type
  int lane = 0;                   // of a stage that runs on each lane
  int num_lanes = 1;
};

/// One part of a meeting. It is a constant: a table of stages costs no memory and no construction.
struct Stage {
  enum class Runs : uint8_t {
    kOnce,       // on one thread, while all replicas and lanes are at rest
    kOnEachLane  // once on each lane, concurrently; the next stage begins when all are through
  };
  const char* name;  // a literal: "reduce"
  Runs runs;
  void (*carry_out)(Meeting& leading, const StageCall& call);
};

/// What one replica brings to a meeting point. It lives on the replica's stack while the replica waits there.
/// Invariant: other threads use it only until the last stage has ended; then the replica may go on.
/// Invariant: meetings with equal `what()` and `name()` have one type, so that a stage may cast all of them to its own.
///
/// Replicas go on only when all have arrived with equal `what()`, `name()` and `signature()`. Then the lowest replica's
/// meeting leads: its stages are carried out in order. An exception from a stage ends the meeting, is thrown from the
/// call of every replica, and fails the run, even where a step catches it.
class Meeting {
 public:
  virtual ~Meeting() = default;

  /// The call that the user made, a literal: "all_reduce", "optimizer.step".
  virtual const char* what() const = 0;
  /// The name of the variable, optimizer or function that the call is about; empty where there is none. It means the
  /// same in every process of the run, which an address would not.
  virtual std::string_view name() const { return {}; }
  /// Must be equal on all replicas, and in every process of the run: shapes, dtypes, operations, options.
  virtual uint64_t signature() const { return 0; }
  /// `what()` with its arguments, for the message where replicas differ.
  virtual std::string describe() const { return what(); }
  /// Where in the program the call is; of line 0 where that is not known. Replicas may call from different places.
  virtual std::source_location place() const { return {}; }

  /// Called on the leading meeting when all have arrived. The table that it returns outlives the meeting's last stage.
  virtual std::span<const Stage> stages() const = 0;
};

/// A stage that calls member function `Member` of the leading meeting, on one thread: `void f(std::span<Meeting* const>
/// all)` or `void f()`.
template <auto Member>
constexpr Stage once(const char* name);
/// A stage that calls `Member` of the leading meeting on each lane: `void f(int lane, int num_lanes)`.
template <auto Member>
constexpr Stage on_each_lane(const char* name);

template <class T>
struct ClassOfMember;
template <class M, class Result, class... Args>
struct ClassOfMember<Result (M::*)(Args...)> {
  using type = M;
};

template <auto Member>
constexpr Stage once(const char* name) {
  return {name, Stage::Runs::kOnce, [](Meeting& leading, const StageCall& call) {
            auto& meeting = static_cast<typename ClassOfMember<decltype(Member)>::type&>(leading);
            if constexpr (std::is_invocable_v<decltype(Member), decltype(meeting)>) {
              (meeting.*Member)();
            } else {
              (meeting.*Member)(call.all);
            }
          }};
}

template <auto Member>
constexpr Stage on_each_lane(const char* name) {
  return {name, Stage::Runs::kOnEachLane, [](Meeting& leading, const StageCall& call) {
            auto& meeting = static_cast<typename ClassOfMember<decltype(Member)>::type&>(leading);
            (meeting.*Member)(call.lane, call.num_lanes);
          }};
}

}  // namespace lockstep::internal::replica
