// Runs a program, records it and replays it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/server/recorded_run.h"
#include "tests/support/factored.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::testing {

using State = std::vector<torch::Tensor>;

/// Runs that are recorded and then repeated by their records.
class ReplayTest : public ScratchFolder {
 protected:
  /// Runs `use` on a program that is recorded, and then on one that repeats the record.
  template <class Use>
  void expect_same(const ParameterServerOptions& options, const Use& use) {
    const auto run = [&] {
      ParameterServerOptions with_record = options;
      with_record.record = file();
      RecordedProgram program(with_record);
      State all = use(program);
      for (torch::Tensor& one : program.state()) all.push_back(std::move(one));
      return all;
    };
    const State original = run();
    const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
    EXPECT_TRUE(are_equal(run(), original));
  }
  std::string file() const { return path("run.rec"); }
};

inline State losses_of(RecordedProgram& program, int steps) {
  State losses;
  const auto train = program.strategy.step("train", program.train);
  program.strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<torch::Tensor>> values;
    for (int k = 0; k < steps; ++k) values.push_back(coordinator.schedule(train));
    losses = coordinator.get(values);
  });
  return losses;
}

}  // namespace lockstep::testing
