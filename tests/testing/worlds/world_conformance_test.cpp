// The conformance suite of worlds: the library's own worlds pass, each check as a test.
#include "lockstep/testing/world_conformance.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join/plug_ins.h"
#include "lockstep/comm/network/network_world.h"
#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/comm/thread_workers.h"
#include "tests/support/errors.h"
#include "tests/support/fault_seeds.h"
#include "tests/support/open_files.h"

namespace lockstep {

namespace testing {

/// Prints a check, for parameterised tests.
static void PrintTo(const ConformanceCheck& check, std::ostream* stream) { *stream << check.name; }

}  // namespace testing

namespace {

using testing::ConformanceCheck;
using testing::world_checks;
using testing::WorldConformance;

using Worlds = std::vector<std::shared_ptr<World>>;

Worlds threads(int64_t workers, std::chrono::milliseconds patience) {
  const ThreadWorkers job(workers, patience);
  Worlds worlds;
  for (int64_t w = 0; w < workers; ++w) worlds.push_back(job.world(w));
  return worlds;
}

/// Workers of one process, each with a mapping of its own. Separate processes are in tests/comm.
Worlds shared_memory(int64_t workers, std::chrono::milliseconds patience) {
  static std::atomic<int> count = 0;
  const std::string name = "conformance-" + std::to_string(getpid()) + "-" + std::to_string(++count);
  std::vector<std::future<std::shared_ptr<World>>> joining;
  for (int64_t w = 0; w < workers; ++w) {
    joining.push_back(std::async(std::launch::async, [=] {
      return internal::join_shared_memory({.name = name, .num_workers = workers, .worker_index = w},
                                          {.patience = patience});
    }));
  }
  Worlds worlds;
  for (auto& one : joining) worlds.push_back(one.get());
  return worlds;
}

struct Network {
  bool plaintext = false;
  std::string plug_in = {};
  int64_t most_direct = internal::kMostDirect;
  /// The host on which a worker says that it is; this machine where there is none.
  std::function<std::string(int64_t worker, int64_t workers)> host = {};
};

/// Workers of one process, each with connections of its own. Separate processes are in tests/comm.
Worlds make_network(int64_t workers, std::chrono::milliseconds patience, const Network& how) {
  const std::string& plug_in = how.plug_in;
  const WorkerTimeouts timeouts{.patience = patience};
  const auto job_of = [&](int64_t worker, uint16_t port) {
    return internal::NetworkJob{.num_workers = workers,
                                .worker_index = worker,
                                .chief = {"127.0.0.1"},
                                .chief_port = port,
                                .own_address = "127.0.0.1",
                                .secret = "a secret of this test",
                                .plaintext = how.plaintext,
                                .most_direct = how.most_direct,
                                .host_id = how.host ? how.host(worker, workers) : std::string()};
  };
  const auto connect = [&](std::unique_ptr<internal::NetworkRendezvous> network) {
    network->meet(timeouts.join);
    if (plug_in.empty()) return internal::connect_network(std::move(network), timeouts);
    const internal::MessengerSetup setup{
        .num_workers = workers, .worker_index = network->job().worker_index, .network_interface = "lo"};
    return internal::connect_network(std::move(network), timeouts, internal::load_messenger(plug_in, setup), true);
  };
  auto chief = std::make_unique<internal::NetworkRendezvous>(job_of(0, 0));
  const uint16_t port = chief->port();
  std::vector<std::future<std::shared_ptr<World>>> joining;
  for (int64_t w = 1; w < workers; ++w) {
    joining.push_back(std::async(std::launch::async, [&, w] {
      return connect(std::make_unique<internal::NetworkRendezvous>(job_of(w, port)));
    }));
  }
  Worlds worlds{connect(std::move(chief))};
  for (auto& one : joining) worlds.push_back(one.get());
  return worlds;
}
/// As WorldConformance::make.
auto network(Network how) {
  return [how = std::move(how)](int64_t workers, std::chrono::milliseconds patience) {
    return make_network(workers, patience, how);
  };
}

/// Two hosts with half of the workers each, and all workers on one host but for the last.
std::string one_of_two_hosts(int64_t worker, int64_t workers) { return 2 * worker < workers ? "a" : "b"; }
std::string host_of_all_but_the_last(int64_t worker, int64_t workers) { return worker + 1 < workers ? "a" : "b"; }

/// Why the plug-in cannot be used here; empty where it can.
std::string missing(const std::string& plug_in) try {
  internal::load_messenger(plug_in, {.num_workers = 2, .network_interface = "lo"});
  return {};
} catch (const ClusterError& error) {
  return error.what();
}

/// These in the suite, all by scripts/test-faults.
std::vector<int64_t> workers(const std::vector<int64_t>& in_the_suite) {
  return testing::all_engines() ? WorldConformance{}.workers : in_the_suite;
}

class WorldConforms : public ::testing::TestWithParam<ConformanceCheck> {};

TEST_P(WorldConforms, To) { GetParam().run(); }

const auto kName = [](const auto& one) { return one.param.name; };
INSTANTIATE_TEST_SUITE_P(Threads, WorldConforms, ::testing::ValuesIn(world_checks({.make = threads})), kName);
INSTANTIATE_TEST_SUITE_P(SharedMemory, WorldConforms, ::testing::ValuesIn(world_checks({.make = shared_memory})),
                         kName);
INSTANTIATE_TEST_SUITE_P(Tls, WorldConforms,
                         ::testing::ValuesIn(world_checks({.make = network({}), .workers = workers({2, 3, 8})})),
                         kName);
// As more workers do.
INSTANTIATE_TEST_SUITE_P(
    TlsInRounds, WorldConforms,
    ::testing::ValuesIn(world_checks({.make = network({.most_direct = 0}), .workers = workers({2, 3, 7})})), kName);
// As tls, but for the cipher.
INSTANTIATE_TEST_SUITE_P(
    Tcp, WorldConforms,
    ::testing::ValuesIn(world_checks({.make = network({.plaintext = true}), .workers = workers({2, 8})})), kName);
// Workers of a host share memory.
INSTANTIATE_TEST_SUITE_P(TwoHosts, WorldConforms,
                         ::testing::ValuesIn(world_checks({.make = network({.host = one_of_two_hosts}),
                                                           .workers = workers({3, 8})})),
                         kName);
INSTANTIATE_TEST_SUITE_P(
    AllButOneOnAHost, WorldConforms,
    ::testing::ValuesIn(world_checks({.make = network({.plaintext = true, .host = host_of_all_but_the_last}),
                                      .workers = workers({4})})),
    kName);

class UcxWorldConforms : public WorldConforms {};

TEST_P(UcxWorldConforms, To) {
  // What an aborted run was sending by UCX cannot always be stopped. UCX then keeps its files until the process ends.
  // These are hundreds of such runs, and slow ones leave more.
  static const testing::OpenFiles files(8192);
  if (!files.is_enough()) GTEST_SKIP() << "this process may not have 8192 open files (ulimit -Hn)";
  const std::string why = missing("ucx");
  if (!why.empty()) GTEST_SKIP() << why;
  GetParam().run();
}

INSTANTIATE_TEST_SUITE_P(
    Ucx, UcxWorldConforms,
    ::testing::ValuesIn(world_checks({.make = network({.plug_in = "ucx"}), .workers = workers({2, 3, 8})})), kName);

TEST(WorldConformance, HasEachCheckForEachNumberOfWorkersUnderANameThatTestsCanHave) {
  std::set<std::string> names;
  const auto checks = world_checks({.make = threads});
  for (const ConformanceCheck& check : checks) {
    names.insert(check.name);
    for (const char c : check.name) EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == '_') << check.name;
  }
  EXPECT_EQ(names.size(), checks.size());
  EXPECT_EQ(checks.size(), 4 * world_checks({.make = threads, .workers = {5}}).size());
  for (const char* workers : {"_2Workers", "_3Workers", "_4Workers", "_8Workers"}) {
    EXPECT_EQ(names.count(std::string("AgreeGivesEveryRecordByWorker") + workers), 1u);
  }
}

TEST(WorldConformance, RefusesWhatHasNoMeaning) {
  for (const WorldConformance& none :
       {WorldConformance{}, WorldConformance{.make = threads, .workers = {}},
        WorldConformance{.make = threads, .workers = {2, 1}}, WorldConformance{.make = threads, .largest_bytes = 65535},
        WorldConformance{.make = threads, .patience = std::chrono::seconds(60)}}) {
    testing::expect_error<UsageError>([&] { world_checks(none); }, "LS-OPTION");
  }
}

TEST(WorldConformance, NamesAMakeThatGivesOtherWorldsThanAskedFor) {
  const auto fewer = [](int64_t workers, std::chrono::milliseconds patience) {
    Worlds worlds = threads(workers, patience);
    worlds.pop_back();
    return worlds;
  };
  const auto checks = world_checks({.make = fewer, .workers = {3}});
  testing::expect_error<DivergenceError>([&] { checks.front().run(); }, "LS-NO-WORLD",
                                         {"3 workers", "is 2, expected 3"});
}

}  // namespace

}  // namespace lockstep
