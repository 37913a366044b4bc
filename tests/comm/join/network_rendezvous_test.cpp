// How workers meet over the network: who is missing, who does not belong, and who cannot be reached.
#include "lockstep/comm/network/join/network_rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/join/this_host.h"
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

void expect_refused(std::future<Members> worker, const char* code, std::initializer_list<std::string_view> values,
                    const lockstep::testing::Where& where = lockstep::testing::Where::current()) {
  expect_error<ClusterError>([&] { worker.get(); }, code, values, where);
}

TEST(NetworkRendezvous, TellsAllWorkersWhoTakesPart) {
  for (const int64_t workers : {2, 3, 8}) {
    auto chief = std::make_unique<NetworkRendezvous>(job_of(0, workers));
    std::vector<std::future<Members>> others;
    for (int64_t w = workers - 1; w > 0; --w) others.push_back(meet(job_of(w, workers, chief->port())));
    const Members members = chief->meet(seconds(60));
    ASSERT_EQ(members.all.size(), static_cast<std::size_t>(workers));
    for (int64_t w = 0; w < workers; ++w) {
      const Member& member = members.all[static_cast<std::size_t>(w)];
      EXPECT_EQ(member.worker, w);
      EXPECT_EQ(member.process, getpid());
      EXPECT_EQ(member.host, host_name());
      EXPECT_EQ(member.host_id, host_id());
      EXPECT_EQ(member.address, "127.0.0.1");
    }
    for (auto& other : others) {
      const Members theirs = other.get();
      EXPECT_EQ(theirs.all, members.all);
      EXPECT_EQ(theirs.session, members.session);
    }
  }
}

TEST(NetworkRendezvous, WaitsForAChiefThatComesLater) {
  const uint16_t port = free_port();
  auto other = meet(job_of(1, 2, port));
  EXPECT_EQ(other.wait_for(milliseconds(300)), std::future_status::timeout);
  NetworkJob late = job_of(0, 2, port);
  auto chief = meet(late);
  EXPECT_EQ(other.get().session, chief.get().session);
}

TEST(NetworkRendezvous, NamesThoseWhoAreMissingToThoseWhoHaveComeAndSaysWhatWasSeenOfThem) {
  const Quiet quiet;
  NetworkJob job = job_of(0, 4);
  const std::string nobody = fmt::format("127.0.0.1:{}", free_port());
  job.expected = {"", "", nobody, ""};
  auto chief = std::make_unique<NetworkRendezvous>(job);
  auto other = meet(job_of(1, 4, chief->port()));
  const std::string words =
      fmt::format("2 of 4 workers are here; missing: workers 2 ({}, Connection refused), 3", nobody);
  expect_error<ClusterError>([&] { chief->meet(milliseconds(500)); }, "LS-CLUSTER-JOIN", {words});
  expect_refused(std::move(other), "LS-CLUSTER-JOIN", {words});
}

TEST(NetworkRendezvous, SaysWhatIsWrongWithTheChiefWhereItDoesNotCome) {
  const uint16_t port = free_port();
  expect_refused(meet(job_of(1, 2, port), milliseconds(300)), "LS-CLUSTER-JOIN",
                 {"worker 1 of 2", fmt::format("127.0.0.1, port {}: Connection refused", port)});
}

TEST(NetworkRendezvous, SaysHowManyFilesItNeedsWhereTheLimitIsLower) {
  expect_error<ClusterError>([] { NetworkRendezvous(job_of(0, 2049)); }, "LS-CLUSTER-SOCKET", {"2049", "2048"});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  expect_error<ClusterError>([] { NetworkRendezvous(job_of(3, 20)); }, "LS-CLUSTER-SOCKET",
                             {"worker 3", "100 files", "104", "ulimit -n 104"});
  EXPECT_NO_THROW(NetworkRendezvous(job_of(0, 18)));
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(NetworkRendezvous, LetsAnotherProcessComeInThePlaceOfOneThatHasGone) {
  auto chief = std::make_unique<NetworkRendezvous>(job_of(0, 3));
  const uint16_t port = chief->port();
  auto waiting = std::async(std::launch::async, [&] { return chief->meet(seconds(60)); });
  // Worker 2 is missing: this one gives up and goes.
  const Quiet quiet;
  expect_refused(meet(job_of(1, 3, port), milliseconds(200)), "LS-CLUSTER-JOIN", {"worker 0 at 127.0.0.1"});
  auto again = meet(job_of(1, 3, port));
  auto last = meet(job_of(2, 3, port));
  EXPECT_EQ(waiting.get().all, again.get().all);
  last.get();
}

TEST(NetworkRendezvous, RefusesAtOnceWhoDoesNotFitAndGoesOnWaiting) {
  const Quiet quiet;
  NetworkJob first = job_of(0, 3);
  first.expected = {"", "", "127.0.0.1:1"};
  auto chief = std::make_unique<NetworkRendezvous>(first);
  const uint16_t port = chief->port();
  auto waiting = std::async(std::launch::async, [&] { return chief->meet(seconds(60)); });
  const auto refused = [&](const std::function<void(NetworkJob&)>& change,
                           std::initializer_list<std::string_view> values) {
    NetworkJob job = job_of(1, 3, port);
    change(job);
    expect_refused(meet(job), "LS-CLUSTER-DIFFERS", values);
  };
  refused([](NetworkJob& job) { job.num_workers = 4; }, {"was told that there are 4 workers", "was told 3"});
  refused([](NetworkJob& job) { job.must_match = "Lockstep 1\nbuild 2"; }, {"has 'build 2'", "has 'build 1'"});
  refused(
      [](NetworkJob& job) {
        job.expected = {"", "", "127.0.0.1:2"};
      },
      {"worker 2 is at 127.0.0.1:2", "was told 127.0.0.1:1"});
  refused([](NetworkJob& job) { job.secret = "another secret of a test"; }, {"does not know this job's secret"});
  refused([](NetworkJob& job) { job.id = "another-job"; }, {"does not know this job's secret"});
  EXPECT_EQ(waiting.wait_for(seconds(0)), std::future_status::timeout);
  auto one = meet(job_of(1, 3, port));
  auto two = meet(job_of(2, 3, port));
  waiting.get();
  one.get();
  two.get();
}

TEST(NetworkRendezvous, NamesBothProcessesThatWantToBeOneWorker) {
  const Quiet quiet;
  auto chief = std::make_unique<NetworkRendezvous>(job_of(0, 3));
  const uint16_t port = chief->port();
  auto waiting = std::async(std::launch::async, [&] { return chief->meet(seconds(60)); });
  auto first = meet(job_of(1, 3, port));
  auto second = meet(job_of(1, 3, port));
  // One of them is refused, whichever comes later.
  while (first.wait_for(milliseconds(1)) != std::future_status::ready &&
         second.wait_for(milliseconds(1)) != std::future_status::ready) {
  }
  const bool is_first = first.wait_for(seconds(0)) == std::future_status::ready;
  expect_refused(std::move(is_first ? first : second), "LS-CLUSTER-TAKEN", {"both want to be worker 1"});
  auto last = meet(job_of(2, 3, port));
  waiting.get();
  last.get();
  (is_first ? second : first).get();
}

TEST(NetworkRendezvous, LetsAWorkerOfTheNextStartWaitWhileTheChiefIsInARun) {
  const Quiet quiet;
  auto chief = std::make_unique<NetworkRendezvous>(job_of(0, 2));
  const uint16_t port = chief->port();
  const auto connect = [](NetworkRendezvous& network) {
    network.meet(seconds(60));
    return network.connect();
  };
  auto first = std::async(std::launch::async, [&] {
    NetworkRendezvous worker(job_of(1, 2, port));
    return connect(worker).members.session;
  });
  NetworkTeam team = connect(*chief);
  EXPECT_EQ(first.get(), team.members.session);
  // In a run the chief goes on listening.
  chief->context().restart();
  auto run = std::async(std::launch::async, [&] { chief->context().run(); });
  expect_refused(meet(job_of(1, 2, port), milliseconds(300)), "LS-CLUSTER-JOIN",
                 {"next run", "worker 0", "is in a run of this job", "is worker 1"});
  NetworkJob other = job_of(1, 2, port);
  other.must_match = "Lockstep 1\nbuild 2";
  expect_refused(meet(other), "LS-CLUSTER-DIFFERS", {"has 'build 2'"});
  auto next = meet(job_of(1, 2, port));
  EXPECT_EQ(next.wait_for(milliseconds(300)), std::future_status::timeout);
  chief->context().stop();
  run.get();
  team = {};
  chief.reset();
  auto second_chief = meet(job_of(0, 2, port));
  EXPECT_EQ(next.get().session, second_chief.get().session);
}

TEST(NetworkRendezvous, NamesTheAddressThatAnotherProgramHas) {
  const auto other = std::make_unique<NetworkRendezvous>(job_of(0, 2));
  const uint16_t port = other->port();
  expect_error<ClusterError>(
      [&] { std::make_unique<NetworkRendezvous>(job_of(0, 2, port)); }, "LS-CLUSTER-SOCKET",
      {"worker 0", "127.0.0.1", std::to_string(port), "Address already in use", "process " + std::to_string(getpid())});
  NetworkJob elsewhere = job_of(0, 2);
  elsewhere.own_address = "192.0.2.1";
  expect_error<ClusterError>([&] { std::make_unique<NetworkRendezvous>(elsewhere); }, "LS-CLUSTER-SOCKET",
                             {"192.0.2.1"});
}

TEST(NetworkRendezvous, NamesTwoWorkersThatCannotBeConnected) {
  // Worker 1 says that it can be reached where nobody listens.
  const TlsContext keys("a secret of the test", "");
  auto chief = std::make_unique<NetworkRendezvous>(job_of(0, 3));
  const uint16_t port = chief->port();
  const uint16_t nowhere = free_port();
  asio::io_context context;
  std::optional<Frame> last;
  const auto liar = [&]() -> asio::awaitable<void> {
    const auto connection = co_await Connection::to("127.0.0.1", port, keys, seconds(10));
    const Joiner joiner{
        .member = {.worker = 1, .process = 77, .host = "b", .host_id = "none", .address = "127.0.0.1", .port = nowhere},
        .num_workers = 3,
        .must_match = "Lockstep 1\nbuild 1"};
    connection->send({.kind = Frame::Kind::kJoin, .text = encode(joiner)});
    for (int i = 0; i < 2; ++i) last = co_await connection->read();
  };
  asio::co_spawn(context, liar(), rethrow);
  auto thread = std::async(std::launch::async, [&] { context.run(); });
  const auto connect = [](std::unique_ptr<NetworkRendezvous> network) {
    network->meet(seconds(60));
    network->connect();
  };
  auto worker_2 =
      std::async(std::launch::async, [&] { connect(std::make_unique<NetworkRendezvous>(job_of(2, 3, port))); });
  const std::string words = fmt::format(
      "worker 2 (process {} on host {}) cannot reach worker 1 (process 77 on host b) "
      "at 127.0.0.1, port {}: Connection refused",
      getpid(), host_name(), nowhere);
  expect_error<ClusterError>([&] { connect(std::move(chief)); }, "LS-CLUSTER-UNREACHABLE", {words});
  expect_error<ClusterError>([&] { worker_2.get(); }, "LS-CLUSTER-UNREACHABLE", {words});
  thread.get();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->kind, Frame::Kind::kRefused);
  EXPECT_EQ(last->text, words);
}

/// Three workers have met, and of these one goes on no more.
struct ThreeHaveMet {
  ThreeHaveMet() {
    workers.push_back(std::make_unique<NetworkRendezvous>(job_of(0, 3)));
    for (const int64_t w : {1, 2}) {
      NetworkJob job = job_of(w, 3, workers[0]->port());
      if (w == 1) job.longest_connect_all = std::chrono::milliseconds(500);
      workers.push_back(std::make_unique<NetworkRendezvous>(job));
    }
    std::vector<std::future<void>> meeting;
    for (const auto& one : workers) {
      meeting.push_back(std::async(std::launch::async, [&] { one->meet(seconds(60)); }));
    }
    for (auto& one : meeting) one.get();
  }
  std::vector<std::unique_ptr<NetworkRendezvous>> workers;
};

TEST(NetworkRendezvous, NamesAChiefThatFallsSilentWhileTheWorkersConnect) {
  const ThreeHaveMet three;
  expect_error<ClusterError>(
      [&] { three.workers[1]->connect(); }, "LS-CLUSTER-UNREACHABLE",
      {fmt::format("worker 0 (process {} on host {}) has not said", getpid(), host_name()), "cannot reach worker 0"});
}

TEST(NetworkRendezvous, NamesAWorkerThatFallsSilentWhileTheWorkersConnectAndNoOtherThatWaitsForIt) {
  const ThreeHaveMet three;
  const std::string words =
      fmt::format("worker 1 (process {} on host {}) has no connection with worker 2", getpid(), host_name());
  auto chief = std::async(std::launch::async, [&] {
    expect_error<ClusterError>([&] { three.workers[0]->connect(); }, "LS-CLUSTER-UNREACHABLE", {words});
  });
  expect_error<ClusterError>([&] { three.workers[1]->connect(); }, "LS-CLUSTER-UNREACHABLE", {words});
  chief.get();
}

/// A TLS server that knows no secret and shows a certificate of its own.
class CertificateServer {
 public:
  CertificateServer()
      : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free),
        listener_(io_, asio::ip::tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    SSL_CTX_use_certificate(context_.get(), certificate.get());
    SSL_CTX_use_PrivateKey(context_.get(), key.get());
    thread_ = std::thread([this] {
      // OpenSSL writes to a client that has gone already.
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
      asio::ip::tcp::socket socket = listener_.accept();
      const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context_.get()), SSL_free);
      SSL_set_fd(tls.get(), socket.native_handle());
      has_been_believed_ = SSL_accept(tls.get()) == 1;
    });
  }
  ~CertificateServer() {
    if (thread_.joinable()) thread_.join();
  }
  uint16_t port() const { return listener_.local_endpoint().port(); }
  bool has_been_believed() {
    thread_.join();
    return has_been_believed_;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  asio::io_context io_;
  asio::ip::tcp::acceptor listener_;
  std::thread thread_;
  bool has_been_believed_ = false;
};

TEST(NetworkRendezvous, DoesNotBelieveAServerThatShowsACertificateInPlaceOfTheSecret) {
  CertificateServer server;
  expect_refused(meet(job_of(1, 2, server.port())), "LS-CLUSTER-DIFFERS", {"does not know this job's secret"});
  EXPECT_FALSE(server.has_been_believed());
}

}  // namespace
}  // namespace lockstep::internal
