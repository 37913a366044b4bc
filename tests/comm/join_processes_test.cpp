// join() of processes whose environments differ in what decides bits.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "tests/support/free_port.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using testing::Report;
using testing::WorkerProcesses;

WORKER_BODY(joins) {
  testing::report("is " + internal::platform_description());
  try {
    join(resolve_cluster(), {.engine = std::getenv("ENGINE")});
    testing::report("joined");
  } catch (const ClusterError& error) {
    testing::report("refused: " + std::string(error.what()));
  }
}

TEST(JoinOfProcesses, NamesTheWorkerWhoseLibTorchUsesOtherInstructions) {
  for (const std::string engine : {"shared-memory", "tls"}) {
    const uint16_t port = testing::free_port();
    WorkerProcesses workers("joins", 2, [&](int64_t w) {
      WorkerProcesses::Environment environment{{"ENGINE", engine},
                                               {"LOCKSTEP_NUM_WORKERS", "2"},
                                               {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                               {"LOCKSTEP_CHIEF_ADDRESS", fmt::format("127.0.0.1:{}", port)},
                                               {"LOCKSTEP_JOB_ID", fmt::format("join-processes-{}", getpid())},
                                               {"LOCKSTEP_SECRET", "a secret of the test"}};
      if (w == 1) environment["ATEN_CPU_CAPABILITY"] = "default";
      return environment;
    });
    const std::string of_chief = workers.expect(0, "is ").text.substr(3);
    const std::string other = workers.expect(1, "is ").text.substr(3);
    if (other == of_chief) GTEST_SKIP() << "both workers have '" << other << "' here";
    EXPECT_NE(of_chief.find("CPU capability"), std::string::npos) << of_chief;
    const std::string refused = workers.expect(1, "refused: ").text;
    for (const std::string& words :
         {fmt::format("worker 1 (process {}", workers.pid(1)), fmt::format("worker 0 (process {}", workers.pid(0)),
          other, of_chief, std::string("[LS-CLUSTER-DIFFERS]")}) {
      EXPECT_NE(refused.find(words), std::string::npos) << words << "\nin " << refused;
    }
  }
}

}  // namespace
}  // namespace lockstep
