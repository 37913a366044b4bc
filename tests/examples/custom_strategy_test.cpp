// The strategies of examples/ pass the conformance suite.
#include <gtest/gtest.h>

#include <memory>

#include "examples/06_round_robin/round_robin.h"
#include "examples/07_local_sgd/local_sgd.h"
#include "lockstep/testing/conformance.h"
#include "tests/support/programs.h"

namespace lockstep::testing {
namespace {

TEST(CustomStrategies, RoundRobinConforms) {
  expect_conformance({.make = [](int64_t replicas, int num_lanes, uint64_t seed) -> std::unique_ptr<Strategy> {
    return std::make_unique<RoundRobinStrategy>(
        RoundRobinOptions{.devices = lanes(num_lanes), .replicas = replicas, .seed = seed});
  }});
}

/// Its steps are not those of one device on the whole batch; that is what local SGD is.
TEST(CustomStrategies, LocalSgdConformsButForTheGradientRule) {
  for (const int64_t every : {1, 3}) {
    expect_conformance({.make = [every](int64_t replicas, int num_lanes, uint64_t seed) -> std::unique_ptr<Strategy> {
                          return std::make_unique<LocalSgdStrategy>(LocalSgdOptions{
                              .devices = lanes(num_lanes), .replicas = replicas, .average_every = every, .seed = seed});
                        },
                        .one_gradient_rule = false});
  }
}

TEST(CustomStrategies, LocalSgdSaysWhatItsOptionTakes) {
  const auto text = message_from<UsageError>([] { LocalSgdStrategy({.average_every = 0}); });
  EXPECT_NE(text.find("average every 0 steps\nset .average_every to 1 or more"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::testing
