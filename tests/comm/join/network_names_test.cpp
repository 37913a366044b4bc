// The names of hosts while workers meet: they are looked up aside, and again where that may help.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/comm/network_jobs.h"
#include "tests/support/errors.h"
#include "tests/support/free_port.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::free_port;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(NetworkNames, OfThoseWhoAreMissingAreLookedUp) {
  const Quiet quiet;
  NetworkJob job = job_of(0, 4);
  const std::string nobody = fmt::format("node2.example:{}", free_port());
  job.expected = {"", "", nobody, "node3.example:1"};
  job.resolver = [](const std::string& host) -> HostNumbers {
    if (host == "node2.example") return {.numbers = {"127.0.0.1"}};
    return {.problem = "nobody knows " + host};
  };
  auto chief = std::make_unique<NetworkRendezvous>(job);
  auto other = meet(job_of(1, 4, chief->port()));
  const std::string words = fmt::format(
      "missing: workers 2 ({} (127.0.0.1), Connection refused), 3 (node3.example:1, nobody knows node3.example)",
      nobody);
  expect_error<ClusterError>([&] { chief->meet(seconds(1)); }, "LS-CLUSTER-JOIN", {words});
  expect_error<ClusterError>([&] { other.get(); }, "LS-CLUSTER-JOIN", {words});
}

/// A name service that does not answer before the test says so.
class SilentNameService {
 public:
  ~SilentNameService() { answer_.set_value(); }
  Resolver resolver() {
    return [this_answer = answered_, calls = calls_](const std::string&) -> HostNumbers {
      ++*calls;
      this_answer.wait();
      return {.problem = "no answer"};
    };
  }
  int calls() const { return *calls_; }

 private:
  std::promise<void> answer_;
  std::shared_future<void> answered_ = answer_.get_future().share();
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

TEST(NetworkNames, HoldNobodyUpWhereTheNameServiceDoesNotAnswer) {
  SilentNameService names;
  NetworkJob job = job_of(0, 3);
  job.expected = {"", "node1.example:1", "node2.example:1"};
  job.resolver = names.resolver();
  auto chief = std::make_unique<NetworkRendezvous>(job);
  auto waiting = std::async(std::launch::async, [&] { return chief->meet(seconds(60)); });
  while (names.calls() < 2) std::this_thread::yield();
  NetworkJob one = job_of(1, 3, chief->port());
  one.chief = {"127.0.0.2"};  // nobody is there: it asks for another number
  one.chief_name = "chief.example";
  one.look_up_every = milliseconds(1);
  one.resolver = names.resolver();
  const Quiet quiet;
  auto asking = meet(one, seconds(1));
  while (names.calls() < 3) std::this_thread::yield();
  expect_error<ClusterError>([&] { asking.get(); }, "LS-CLUSTER-JOIN", {"127.0.0.2"});
  EXPECT_EQ(names.calls(), 3) << "it asks again where it has an answer";
  auto first = meet(job_of(1, 3, chief->port()));
  auto second = meet(job_of(2, 3, chief->port()));
  EXPECT_EQ(waiting.get().all, first.get().all);
  second.get();
}

TEST(NetworkNames, LeadToAChiefThatHasAnotherNumberThanBefore) {
  const uint16_t port = free_port();
  const auto calls = std::make_shared<std::atomic<int>>(0);
  NetworkJob job = job_of(1, 2, port);
  job.chief = {"127.0.0.2"};
  job.chief_name = "chief.example";
  job.look_up_every = milliseconds(20);
  job.resolver = [calls](const std::string&) -> HostNumbers {
    const int call = ++*calls;
    if (call == 1) return {.numbers = {"127.0.0.2"}};
    if (call == 2) return {.problem = "not now"};
    return {.numbers = {"127.0.0.1"}};
  };
  auto other = meet(job);
  auto chief = meet(job_of(0, 2, port));
  EXPECT_EQ(other.get().session, chief.get().session);
  EXPECT_GE(*calls, 3);
}

}  // namespace
}  // namespace lockstep::internal
