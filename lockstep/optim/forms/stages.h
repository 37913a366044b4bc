// The tables of stages of an optimizer's step: what a form does, and what all forms do. Sources of forms and the step
// include it; the stages call both.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "lockstep/optim/optimizer_step.h"
#include "lockstep/replica/meeting.h"

namespace lockstep::internal::inline optim {

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

/// The same stage. In a form that exchanges, a worker that fails in it ends the run: see Form::exchanges().
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

/// The stage in which most forms write new values.
inline constexpr Stage kUpdate = on_each_lane_or_end_run<&Form::update>("update");

/// A form's stages, of which it names its own: `before` the step begins; `leaves`, which bring here what the update
/// adds; `update`, which write new values and make them valid. All other stages are the same in all forms: that in
/// which the step begins; between `leaves` and `update` the norm, and rules of the program's own, in the steps that
/// need them; and at the end those in which gradients are dropped and the step is counted.
class StageTables {
 public:
  constexpr StageTables(std::initializer_list<Stage> before, std::initializer_list<Stage> leaves,
                        std::initializer_list<Stage> update) {
    for (const bool measures : {false, true}) {
      for (const bool calls_rules : {false, true}) {
        Table& table = tables_[index(measures, calls_rules)];
        table.append(before);
        table.append({once<&StepMeeting::begin>("begin")});
        table.append(leaves);
        if (measures) {
          table.append({on_each_lane_or_end_run<&Form::measure>("measure"),
                        or_end_run<&once<&StepMeeting::use_norm>>("use norm")});
        }
        if (calls_rules) {
          table.append({on_each_lane_by_form<&Form::call_rules>("call rules"),
                        once<&StepMeeting::agree_on_rules>("agree on rules")});
        }
        table.append(update);
        table.append({on_each_lane<&StepMeeting::settle>("settle"), once<&StepMeeting::end>("end")});
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

}  // namespace lockstep::internal::optim
