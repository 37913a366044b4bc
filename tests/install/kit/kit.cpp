// A strategy and its test, as an outside program has them: install_test.sh builds it with an installed Lockstep.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/testing/conformance.h"
#include "lockstep/testing/local_replicas.h"

namespace {

class Mine final : public lockstep::Strategy {
 public:
  Mine(std::vector<std::string> devices, int64_t replicas, uint64_t seed)
      : Strategy(lockstep::StrategySetup{
            .name = "Mine", .topology = std::make_shared<lockstep::HostTopology>(devices, replicas), .seed = seed}) {}
};

}  // namespace

int main() {
  const lockstep::testing::LocalReplicas strategy({.replicas = 8});
  lockstep::testing::expect_conformance({.make =
                                             [](int64_t replicas, int lanes, uint64_t seed) {
                                               std::vector<std::string> devices;
                                               for (int lane = 0; lane < lanes; ++lane)
                                                 devices.push_back("cpu:" + std::to_string(lane));
                                               return std::make_unique<Mine>(devices, replicas, seed);
                                             },
                                         .replicas = {2},
                                         .lanes = {1},
                                         .more_replicas = {}});
  std::cout << "a strategy of this program's own conforms, and " << strategy.num_replicas()
            << " replicas are one test\n";
}
