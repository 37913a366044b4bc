// The tables of stages of an optimizer's step: what a form does, and between that what all forms do.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "lockstep/optim/optimizer_step.h"
#include "lockstep/replica/meeting.h"

namespace lockstep::internal {

// A stage of a form: member function `Member` of the form, `void f()` or `void f(int lane, int num_lanes)`.

template <auto Member>
constexpr Stage once_by_form(const char* name) {
  return {name, Stage::Runs::kOnce, [](Meeting& leading, const StageCall&) {
            using F = typename ClassOfMember<decltype(Member)>::type;
            (static_cast<F&>(static_cast<StepMeeting&>(leading).form()).*Member)();
          }};
}
template <auto Member>
constexpr Stage on_each_lane_by_form(const char* name) {
  return {name, Stage::Runs::kOnEachLane, [](Meeting& leading, const StageCall& call) {
            using F = typename ClassOfMember<decltype(Member)>::type;
            (static_cast<F&>(static_cast<StepMeeting&>(leading).form()).*Member)(call.lane, call.num_lanes);
          }};
}

/// The same stage where other workers need it for an exchange, or after the last one: see Form::exchanges().
template <Stage (*MakeStage)(const char*)>
constexpr Stage or_end_run(const char* name) {
  constexpr Stage kStage = MakeStage("");
  return {name, kStage.runs, [](Meeting& leading, const StageCall& call) {
            static_cast<StepMeeting&>(leading).or_end_run([&] { MakeStage("").carry_out(leading, call); });
          }};
}
template <auto Member>
constexpr Stage once_or_end_run(const char* name) {
  return or_end_run<&once_by_form<Member>>(name);
}
template <auto Member>
constexpr Stage on_each_lane_or_end_run(const char* name) {
  return or_end_run<&on_each_lane_by_form<Member>>(name);
}

// Stages of all forms.

inline constexpr Stage kBegin = once<&StepMeeting::begin>("begin");
inline constexpr Stage kUpdate = on_each_lane_or_end_run<&Form::update>("update");
inline constexpr Stage kSettle = on_each_lane<&StepMeeting::settle>("settle");
inline constexpr Stage kEnd = once<&StepMeeting::end>("end");

/// A form's stages. `leaves` are those that bring here what the update adds, `commit` those that make new values valid.
/// Between them the norm is measured, and rules of the program's own are called, in the steps that need it.
class StageTables {
 public:
  constexpr StageTables(std::initializer_list<Stage> leaves, std::initializer_list<Stage> commit) {
    for (const bool measures : {false, true}) {
      for (const bool calls_rules : {false, true}) {
        Table& table = tables_[index(measures, calls_rules)];
        table.append(leaves);
        if (measures) {
          table.append(
              {on_each_lane_or_end_run<&Form::measure>("measure"), or_end_run<&once<&StepMeeting::check>>("check")});
        }
        if (calls_rules) {
          table.append({on_each_lane_by_form<&Form::call_rules>("call rules"),
                        or_end_run<&once<&StepMeeting::agree_on_rules>>("agree on rules")});
        }
        table.append(commit);
      }
    }
  }

  std::span<const Stage> of(bool measures, bool calls_rules) const {
    const Table& table = tables_[index(measures, calls_rules)];
    return {table.stages.data(), table.size};
  }

 private:
  struct Table {
    std::array<Stage, 18> stages{};
    std::size_t size = 0;
    constexpr void append(std::initializer_list<Stage> more) {
      for (const Stage& one : more) stages[size++] = one;
    }
  };
  static constexpr std::size_t index(bool measures, bool calls_rules) {
    return (measures ? 2u : 0u) + (calls_rules ? 1u : 0u);
  }

  std::array<Table, 4> tables_{};
};

}  // namespace lockstep::internal
