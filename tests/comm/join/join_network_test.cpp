// join() between workers that are connected over the network, as a program uses it.
#include "lockstep/comm/join/join.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/join/plug_ins.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/support/errors.h"
#include "tests/support/free_port.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::free_port;
using std::chrono::seconds;

struct Quiet {
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink({}); }
};

ClusterSpec cluster_of(int64_t worker, int64_t workers, uint16_t port, const std::string& secret,
                       const std::string& host = "127.0.0.1") {
  ClusterSpec cluster{.task = worker};
  cluster.jobs["worker"].assign(static_cast<std::size_t>(workers), "");
  cluster.jobs["worker"][0] = fmt::format("{}:{}", host, port);
  if (!secret.empty()) cluster.secret = Secret(secret);
  return cluster;
}

TEST(JoinOverTheNetwork, ConnectsWorkersOfOneHostByTheEngineThatWasAskedFor) {
  std::vector<std::string> engines{"tls", "tcp"};
  try {
    load_messenger("ucx", {.num_workers = 2, .network_interface = "lo"});
    engines.emplace_back("ucx");
  } catch (const ClusterError& error) {
    std::cout << error.what() << "\n";
  }
  for (const std::string& engine : engines) {
    for (const std::string secret : {"", "a secret of the test"}) {
      const uint16_t port = free_port();
      const auto worker = [&](int64_t w) {
        const auto world = join(cluster_of(w, 2, port, secret), {.engine = engine});
        EXPECT_TRUE(world->describe().starts_with(engine + ":")) << world->describe();
        return world->agree(std::to_string(w));
      };
      auto other = std::async(std::launch::async, worker, 1);
      EXPECT_EQ(worker(0), (std::vector<std::string>{"0", "1"}));
      EXPECT_EQ(other.get(), (std::vector<std::string>{"0", "1"}));
    }
  }
}

int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

TEST(JoinOverTheNetwork, NeedsOneThreadOfAWorkerHoweverManyOthersThereAre) {
  constexpr int64_t kWorkers = 8;
  const int64_t before = threads_of_this_process();
  const uint16_t port = free_port();
  const auto worker = [&](int64_t w) {
    return join(cluster_of(w, kWorkers, port, "a secret of the test"), {.engine = "tls"});
  };
  std::vector<std::future<std::shared_ptr<World>>> joining;
  for (int64_t w = 0; w < kWorkers; ++w) joining.push_back(std::async(std::launch::async, worker, w));
  std::vector<std::shared_ptr<World>> worlds;
  for (auto& one : joining) worlds.push_back(one.get());
  // The system may show those that have just ended, which joined and which looked names up.
  const auto end = std::chrono::steady_clock::now() + seconds(10);
  while (threads_of_this_process() > before + kWorkers && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(threads_of_this_process(), before + kWorkers);
}

TEST(JoinOverTheNetwork, LogsOnEachWorkerOnceWhatTheSourcesOfItsDescriptionSayDifferently) {
  for (const int64_t workers : {1, 2}) {
    std::vector<std::string> lines;  // the sink is called by one thread at a time
    set_log_sink([&](LogLevel level, std::string_view line) {
      if (level == LogLevel::kWarning) lines.emplace_back(line);
    });
    const uint16_t port = free_port();
    const auto worker = [&](int64_t w) {
      ClusterSpec cluster = cluster_of(w, workers, port, "");
      cluster.disagreements = {fmt::format("torchrun says {}, and Slurm says 7", w), "they are different chiefs"};
      join(cluster, {.engine = "tls"});
    };
    auto other = std::async(std::launch::async, [&] {
      if (workers == 2) worker(1);
    });
    worker(0);
    other.get();
    set_log_sink({});
    std::sort(lines.begin(), lines.end());
    std::vector<std::string> expected;
    for (int64_t w = 0; w < workers; ++w) {
      expected.push_back(fmt::format("worker {}: they are different chiefs", w));
      expected.push_back(fmt::format("worker {}: torchrun says {}, and Slurm says 7", w, w));
    }
    EXPECT_EQ(lines, expected);
  }
}

/// An address of this host that others may reach; empty where it has none.
std::string outer_address() {
  for (const InterfaceAddress& one : network_interfaces()) {
    if (!is_loopback(one.address) && one.address.find(':') == std::string::npos) return one.address;
  }
  return {};
}

TEST(JoinOverTheNetwork, TakesSharedMemoryByItselfWhereAllWorkersTurnOutToBeOnOneHost) {
  const std::string host = outer_address();
  if (host.empty()) GTEST_SKIP() << "this host has no IPv4 address but those of the loopback interface";
  const uint16_t port = free_port();
  const auto worker = [&](int64_t w) {
    const auto world = join(cluster_of(w, 2, port, "a secret of the test", host));
    EXPECT_EQ(world->describe().substr(0, 14), "shared-memory:");
    return world->agree(std::to_string(w));
  };
  auto other = std::async(std::launch::async, worker, 1);
  EXPECT_EQ(worker(0), (std::vector<std::string>{"0", "1"}));
  other.get();
}

TEST(JoinOverTheNetwork, WorksByIPv6) {
  const std::vector<InterfaceAddress> all = network_interfaces();
  if (std::none_of(all.begin(), all.end(), [](const auto& one) { return one.address == "::1"; })) {
    GTEST_SKIP() << "this host has no ::1";
  }
  const uint16_t port = free_port();
  const auto worker = [&](int64_t w) {
    return join(cluster_of(w, 2, port, "", "[::1]"), {.engine = "tls"})->agree(std::to_string(w));
  };
  auto other = std::async(std::launch::async, worker, 1);
  EXPECT_EQ(worker(0), (std::vector<std::string>{"0", "1"}));
  other.get();
}

TEST(JoinOverTheNetwork, RefusesWorkersWhoDisagreeWhetherTheNetworkIsTrusted) {
  const Quiet quiet;
  const std::string host = outer_address();
  if (host.empty()) GTEST_SKIP() << "this host has no IPv4 address but those of the loopback interface";
  const uint16_t port = free_port();
  const auto worker = [&](int64_t w) {
    ClusterSpec cluster = cluster_of(w, 2, port, "a secret of the test", host);
    cluster.trusted_network = w == 1;
    return join(cluster, {.timeouts = {.join = seconds(2)}});
  };
  auto chief = std::async(std::launch::async, worker, 0);
  expect_error<ClusterError>([&] { worker(1); }, "LS-CLUSTER-DIFFERS",
                             {"has 'data is not encrypted'", "has 'data is encrypted'"});
  expect_error<ClusterError>([&] { chief.get(); }, "LS-CLUSTER-JOIN");
}

TEST(JoinOverTheNetwork, RefusesWorkersWhoWantDifferentEngines) {
  const Quiet quiet;
  const uint16_t port = free_port();
  auto chief = std::async(std::launch::async, [&] {
    return join(cluster_of(0, 2, port, ""), {.engine = "tls", .timeouts = {.join = seconds(2)}});
  });
  expect_error<ClusterError>([&] { join(cluster_of(1, 2, port, ""), {.engine = "tcp"}); }, "LS-CLUSTER-DIFFERS",
                             {"has 'engine tcp'", "has 'engine tls'"});
  expect_error<ClusterError>([&] { chief.get(); }, "LS-CLUSTER-JOIN");
}

TEST(JoinOverTheNetwork, NeedsASecretWhereOthersCanReachTheWorker) {
  const std::string host = outer_address();
  if (host.empty()) GTEST_SKIP() << "this host has no IPv4 address but those of the loopback interface";
  for (const int64_t w : {0, 1}) {
    expect_error<ClusterError>([&] { join(cluster_of(w, 2, free_port(), "", host), {.engine = "tls"}); },
                               "LS-CLUSTER-SECRET", {"worker " + std::to_string(w), host});
  }
}

TEST(JoinOverTheNetwork, RefusesAnEngineWithoutProtectionAtAPublicAddress) {
  const std::string host = outer_address();
  if (host.empty() || is_private(host)) GTEST_SKIP() << "this host has no public IPv4 address";
  expect_error<ClusterError>(
      [&] { join(cluster_of(0, 2, free_port(), "a secret of the test", host), {.engine = "ucx"}); },
      "LS-CLUSTER-PUBLIC", {"worker 0", "ucx", host});
}

TEST(JoinOverTheNetwork, NeedsTheChiefsAddressAndAnEngineThatExists) {
  ClusterSpec cluster{.task = 1};
  cluster.jobs["worker"].assign(2, "");
  expect_error<ClusterError>([&] { join(cluster, {.engine = "tls"}); }, "LS-CLUSTER-INCOMPLETE", {"worker 1"});
  expect_error<UsageError>([&] { join(cluster, {.engine = "pigeon"}); }, "LS-OPTION", {"pigeon", "tls"});
}

}  // namespace
}  // namespace lockstep::internal
