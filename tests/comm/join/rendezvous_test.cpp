// How workers of one host meet: who is missing, who does not belong, and what strangers cannot do.
#include "lockstep/comm/shared_memory/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string new_name() {
  static std::atomic<int> count = 0;
  return "rendezvous-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

struct Quiet {
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink({}); }
};

std::future<RendezvousResult> meet(LocalJob job, milliseconds join = seconds(60)) {
  return std::async(std::launch::async, [job = std::move(job), join] { return rendezvous(job, join); });
}

void expect_refused(std::future<RendezvousResult> worker, const char* code,
                    std::initializer_list<std::string_view> values,
                    const lockstep::testing::Where& where = lockstep::testing::Where::current()) {
  expect_error<ClusterError>([&] { worker.get(); }, code, values, where);
}

/// A guest that has come to worker 0, and speaks as the test says.
FileDescriptor guest_at(const LocalJob& job) {
  const std::string place = rendezvous_name(job.name, job.secret);
  while (true) {
    FileDescriptor connection = connect_to(place);
    if (connection.get() >= 0) return connection;
    std::this_thread::yield();
  }
}

/// What worker 0 answers; is_over where it hangs up.
Received answer_at(const FileDescriptor& connection) {
  while (true) {
    wait_for_input(connection, Clock::now() + seconds(1));
    Received received = receive(connection);
    if (received.message || received.is_over) return received;
  }
}

TEST(Rendezvous, BringsAllWorkersTogetherInOneMemory) {
  for (const int64_t workers : {2, 3, 8}) {
    const std::string name = new_name();
    std::vector<std::future<RendezvousResult>> all;
    for (int64_t w = workers - 1; w >= 0; --w) all.insert(all.begin(), meet({name, workers, w, "a secret", "build"}));
    std::vector<RendezvousResult> teams;
    for (auto& one : all) teams.push_back(one.get());
    EXPECT_EQ(teams[0].peers.size(), static_cast<std::size_t>(workers - 1));
    for (int64_t w = 1; w < workers; ++w) {
      const RendezvousResult& team = teams[static_cast<std::size_t>(w)];
      team.segment.worker(w).taken = static_cast<uint64_t>(100 + w);
      ASSERT_EQ(team.peers.size(), 1U);
      EXPECT_EQ(team.peers[0].worker, 0);
      EXPECT_EQ(team.peers[0].process, getpid());
    }
    for (int64_t w = 1; w < workers; ++w) {
      EXPECT_EQ(teams[0].segment.worker(w).taken, static_cast<uint64_t>(100 + w));
    }
  }
}

TEST(Rendezvous, OfTwoJobsDoesNotMix) {
  const std::string name = new_name();
  auto a0 = meet({name, 2, 0, "one secret"});
  auto b0 = meet({name, 2, 0, "another secret"});
  auto b1 = meet({name, 2, 1, "another secret"});
  auto a1 = meet({name, 2, 1, "one secret"});
  const RendezvousResult a = a0.get();
  const RendezvousResult b = b0.get();
  a1.get().segment.worker(1).taken = 1;
  b1.get().segment.worker(1).taken = 2;
  EXPECT_EQ(a.segment.worker(1).taken, 1U);
  EXPECT_EQ(b.segment.worker(1).taken, 2U);
}

TEST(Rendezvous, NamesWhoIsMissingOnEveryWorkerThatCame) {
  const Quiet quiet;
  const std::string name = new_name();
  auto chief = meet({name, 4, 0}, milliseconds(500));
  auto second = meet({name, 4, 2}, milliseconds(500));
  expect_refused(std::move(chief), "LS-CLUSTER-JOIN", {"2 of 4 workers", "workers 1, 3"});
  expect_refused(std::move(second), "LS-CLUSTER-JOIN", {"2 of 4 workers", "workers 1, 3"});
  expect_refused(meet({new_name(), 2, 1}, milliseconds(50)), "LS-CLUSTER-JOIN", {"worker 1 of 2", "worker 0"});
}

TEST(Rendezvous, RefusesTheSecondProcessOfAnIndexWhileTheFirstGoesOn) {
  const Quiet quiet;
  const LocalJob job{new_name(), 3, 1, "a secret", "build"};
  auto chief = meet({job.name, 3, 0, job.secret, job.must_match});
  auto one = meet(job);
  auto other = meet(job);
  // One of both is refused, whichever comes later.
  std::future<RendezvousResult>* refused = nullptr;
  while (!refused) {
    if (one.wait_for(milliseconds(1)) == std::future_status::ready) refused = &one;
    if (other.wait_for(milliseconds(1)) == std::future_status::ready) refused = &other;
  }
  expect_error<ClusterError>([&] { refused->get(); }, "LS-CLUSTER-TAKEN", {"both want to be worker 1"});
  expect_refused(meet({job.name, 3, 0, job.secret, job.must_match}), "LS-CLUSTER-TAKEN",
                 {"worker 0", std::to_string(getpid())});
  auto last = meet({job.name, 3, 2, job.secret, job.must_match});
  chief.get();
  last.get();
  (refused == &one ? other : one).get();
}

TEST(Rendezvous, RefusesAnotherNumberOfWorkersAnotherBuildAndAnIndexThatIsNone) {
  const Quiet quiet;
  const std::string name = new_name();
  auto chief = meet({name, 2, 0, "", "Lockstep 1\nLibTorch 2.15\nAVX2"});
  expect_refused(meet({name, 3, 1}), "LS-CLUSTER-DIFFERS", {"3 workers", "worker 0", " 2"});
  expect_refused(meet({name, 2, 1, "", "Lockstep 1\nLibTorch 2.6\nAVX2"}), "LS-CLUSTER-DIFFERS",
                 {"worker 1", "'LibTorch 2.6'", "'LibTorch 2.15'"});
  expect_refused(meet({name, 2, 1, "", "Lockstep 1"}), "LS-CLUSTER-DIFFERS", {"''", "'LibTorch 2.15'"});
  expect_refused(meet({name, 2, 2, "", ""}), "LS-CLUSTER-DIFFERS", {"worker 2 of 2"});
  meet({name, 2, 1, "", "Lockstep 1\nLibTorch 2.15\nAVX2"}).get();
  chief.get();
}

TEST(Rendezvous, GivesTheIndexOfAWorkerThatHasDiedToTheNextOne) {
  const LocalJob job{new_name(), 3, 0, "a secret", "build"};
  auto chief = meet(job);
  {
    const FileDescriptor dying = guest_at(job);
    const Nonce nonce = fresh_nonce();
    ASSERT_TRUE(send(dying, {.kind = RendezvousMessage::Kind::kHello, .nonce = nonce}));
    const Received challenge = answer_at(dying);
    ASSERT_TRUE(challenge.message);
    ASSERT_TRUE(send(dying, {.kind = RendezvousMessage::Kind::kJoin,
                             .proof = proof_of(job.secret, "worker", nonce, challenge.message->nonce),
                             .worker = 1,
                             .num_workers = 3,
                             .text = job.must_match}));
  }
  auto first = meet({job.name, 3, 1, job.secret, job.must_match});
  auto second = meet({job.name, 3, 2, job.secret, job.must_match});
  EXPECT_EQ(chief.get().peers.size(), 2U);
  first.get();
  second.get();
}

TEST(Rendezvous, HangsUpOnStrangersAndGoesOn) {
  const LocalJob job{new_name(), 2, 0, "a secret", "build"};
  auto chief = meet(job);
  const auto send_bytes = [](const FileDescriptor& to, const std::string& bytes) {
    return ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  };
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1, '\0'), std::string(kLongestMessage + 1, 'x'),
        std::string("LSlocal1"), encode({.kind = RendezvousMessage::Kind::kWelcome})}) {
    const FileDescriptor stranger = guest_at(job);
    ASSERT_TRUE(send_bytes(stranger, bytes));
    EXPECT_TRUE(answer_at(stranger).is_over);
  }
  {  // knows the place but not the secret
    const FileDescriptor stranger = guest_at(job);
    ASSERT_TRUE(send(stranger, {.kind = RendezvousMessage::Kind::kHello, .nonce = fresh_nonce()}));
    const Received challenge = answer_at(stranger);
    ASSERT_TRUE(challenge.message);
    ASSERT_TRUE(send(stranger, {.kind = RendezvousMessage::Kind::kJoin,
                                .proof = challenge.message->proof,  // sends back what it was sent
                                .worker = 1,
                                .num_workers = 2,
                                .text = job.must_match}));
    EXPECT_TRUE(answer_at(stranger).is_over);
  }
  {  // joins without a proof
    const FileDescriptor stranger = guest_at(job);
    ASSERT_TRUE(send(stranger, {.kind = RendezvousMessage::Kind::kJoin, .worker = 1, .num_workers = 2}));
    EXPECT_TRUE(answer_at(stranger).is_over);
  }
  // Many that say nothing do not keep the last worker away for longer than their time.
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) {
    if (FileDescriptor one = connect_to(rendezvous_name(job.name, job.secret)); one.get() >= 0)
      silent.push_back(std::move(one));
  }
  meet({job.name, 2, 1, job.secret, job.must_match}).get();
  EXPECT_EQ(chief.get().peers.size(), 1U);
}

TEST(Rendezvous, DoesNotBelieveAWorker0WithoutTheSecret) {
  const LocalJob job{new_name(), 2, 1, "a secret", "build"};
  const FileDescriptor listener = listen_at(rendezvous_name(job.name, job.secret));
  auto worker = meet(job);
  FileDescriptor guest;
  while (guest.get() < 0) {
    wait_for_input(listener, Clock::now() + seconds(1));
    guest = accept_at(listener);
  }
  const Received hello = answer_at(guest);
  ASSERT_TRUE(hello.message);
  ASSERT_TRUE(send(guest, {.kind = RendezvousMessage::Kind::kChallenge, .nonce = fresh_nonce()}));
  expect_refused(std::move(worker), "LS-CLUSTER-DIFFERS", {std::to_string(getpid()), "secret"});
}

}  // namespace
}  // namespace lockstep::internal
