// Many workers that all come at once, as when a launcher starts a large job.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/core/log.h"
#include "tests/support/free_port.h"
#include "tests/support/open_files.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using lockstep::testing::free_port;
using std::chrono::seconds;

TEST(ManyWorkers, JoinInTimeWhereAllComeAtOnce) {
  constexpr int64_t kWorkers = 64;
  const lockstep::testing::OpenFiles files(2 * kWorkers * kWorkers + 1000);
  if (!files.is_enough()) GTEST_SKIP() << "this process may not open a file for each connection (ulimit -Hn)";
  const uint16_t port = free_port();
  std::vector<std::string> expected;
  for (int64_t w = 0; w < kWorkers; ++w) expected.push_back(std::to_string(w));
  const auto worker = [&](int64_t w) {
    ClusterSpec cluster{.task = w};
    cluster.jobs["worker"].resize(kWorkers);
    cluster.jobs["worker"][0] = "127.0.0.1:" + std::to_string(port);
    cluster.secret = Secret("a secret of the test");
    // All share two cores here, and few heartbeats leave them to the work.
    const auto begin = Clock::now();
    const auto world = join(cluster, {.engine = "tls", .timeouts = {.join = seconds(90), .lost = seconds(60)}});
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_EQ(world->agree(std::to_string(w)), expected);
    return took;
  };
  std::vector<std::future<double>> workers;
  for (int64_t w = 0; w < kWorkers; ++w) workers.push_back(std::async(std::launch::async, worker, w));
  double slowest = 0;
  for (auto& one : workers) slowest = std::max(slowest, one.get());
  std::cout << kWorkers << " workers have joined after " << slowest << " s\n";
}

}  // namespace
}  // namespace lockstep
