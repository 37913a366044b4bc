// How workers of one host come to share memory in pairs, and what strangers cannot do.
#include "lockstep/comm/network/join/host_rendezvous.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/shared_memory/local_socket.h"

namespace lockstep::internal {
namespace {

using Kind = RendezvousMessage::Kind;

std::vector<Member> members_on(const std::string& hosts) {
  std::vector<Member> members;
  for (const char host : hosts) {
    members.push_back({.worker = static_cast<int64_t>(members.size()), .host_id = std::string(1, host)});
  }
  return members;
}

std::string new_key() {
  static std::atomic<int> count = 0;
  return "key " + std::to_string(getpid()) + "-" + std::to_string(++count);
}

/// All workers of a run. No step waits, so one thread makes the steps of all.
struct Workers {
  explicit Workers(const std::string& hosts, const std::string& its_key = new_key())
      : key(its_key), members(members_on(hosts)) {
    for (const Member& member : members) rendezvous.emplace_back(members, member.worker, key);
  }
  void go_to_others() {
    for (HostRendezvous& one : rendezvous) one.go_to_others();
  }
  void give_and_take() {
    for (HostRendezvous& one : rendezvous) one.give_memory();
    for (HostRendezvous& one : rendezvous) one.take_memory();
    for (HostRendezvous& one : rendezvous) outcomes.push_back(one.outcome());
  }
  std::unique_ptr<MemoryChannel> channel(int64_t from, int64_t to) {
    return rendezvous[static_cast<std::size_t>(from)].channel(to, outcomes);
  }
  std::string missing(int64_t worker) { return rendezvous[static_cast<std::size_t>(worker)].missing(outcomes); }
  /// Where a worker waits, as anybody on the host can see while it does.
  std::string place(int64_t worker) const { return rendezvous_name("memory of worker " + std::to_string(worker), key); }

  const std::string key;
  const std::vector<Member> members;
  std::vector<HostRendezvous> rendezvous;
  std::vector<std::string> outcomes;
};

/// Whether what one end writes comes to the other one.
bool are_connected(MemoryChannel& from, MemoryChannel& to) {
  const std::array<std::byte, 2> sent = {std::byte{17}, std::byte{4}};
  std::array<std::byte, 2> got = {};
  from.write(sent);
  to.read(got);
  return got == sent;
}

TEST(HostRendezvous, IsForRunsInWhichSomeWorkersAndNotAllShareAHost) {
  for (const char* hosts : {"001", "0011", "0001", "0110"}) EXPECT_TRUE(is_mixed(members_on(hosts))) << hosts;
  for (const char* hosts : {"0", "00", "01", "000", "0123"}) EXPECT_FALSE(is_mixed(members_on(hosts))) << hosts;
}

TEST(HostRendezvous, GivesMemoryToEachTwoWorkersOfAHostAndToNoOthers) {
  for (const std::string hosts : {"0011", "0001", "0101", "011", "0000000011111111"}) {
    Workers run(hosts);
    run.go_to_others();
    run.give_and_take();
    const auto workers = static_cast<int64_t>(hosts.size());
    for (int64_t a = 0; a < workers; ++a) {
      EXPECT_EQ(run.missing(a), "");
      for (int64_t b = a + 1; b < workers; ++b) {
        const auto ab = run.channel(a, b);
        const auto ba = run.channel(b, a);
        const bool same = hosts[static_cast<std::size_t>(a)] == hosts[static_cast<std::size_t>(b)];
        ASSERT_EQ(ab != nullptr, same) << hosts << a << b;
        ASSERT_EQ(ba != nullptr, same);
        if (!same) continue;
        EXPECT_TRUE(are_connected(*ab, *ba));
        EXPECT_TRUE(are_connected(*ba, *ab));
      }
    }
  }
}

TEST(HostRendezvous, GivesOneMemoryToAllWorkersOfAHostAndAnotherToEachHost) {
  for (const std::string hosts : {"0011", "0101", "011", "01020"}) {
    Workers run(hosts);
    run.go_to_others();
    run.give_and_take();
    std::vector<std::unique_ptr<HostMemory>> memories;
    std::vector<std::shared_ptr<std::byte>> pieces;
    for (std::size_t w = 0; w < hosts.size(); ++w) {
      EXPECT_EQ(run.rendezvous[w].missing_host_memory(run.outcomes), "");
      memories.push_back(run.rendezvous[w].host_memory(run.outcomes));
      ASSERT_NE(memories.back(), nullptr);
      pieces.push_back(memories.back()->allocate(100));
      pieces.back().get()[w] = std::byte{7};
    }
    for (std::size_t w = 0; w < hosts.size(); ++w) {
      std::vector<int64_t> same;
      for (std::size_t other = 0; other < hosts.size(); ++other) {
        const bool is_same = hosts[w] == hosts[other];
        if (is_same) same.push_back(static_cast<int64_t>(other));
        EXPECT_EQ(pieces[w].get()[other], is_same ? std::byte{7} : std::byte{0}) << hosts << w << other;
      }
      EXPECT_EQ(memories[w]->workers(), same);
    }
  }
}

TEST(HostRendezvous, GivesNoHostMemoryWhereOneWorkerHasNone) {
  Workers run("0011");
  run.go_to_others();
  for (HostRendezvous& one : run.rendezvous) one.give_memory();
  for (std::size_t w : {0, 1, 2}) run.rendezvous[w].take_memory();  // and worker 3 does not
  for (HostRendezvous& one : run.rendezvous) run.outcomes.push_back(one.outcome());
  for (HostRendezvous& one : run.rendezvous) {
    EXPECT_EQ(one.host_memory(run.outcomes), nullptr);
    EXPECT_NE(one.missing_host_memory(run.outcomes).find("worker 3"), std::string::npos);
  }
}

TEST(HostRendezvous, GivesNothingToStrangers) {
  Workers run("0001");
  const Proof of_another_pair = hmac(run.key, "lockstep memory, worker 2 to worker 0");
  const Proof of_another_key = hmac("another key", "lockstep memory, worker 1 to worker 0");
  const std::string place = run.place(0);
  std::vector<FileDescriptor> strangers;
  const auto come = [&](std::initializer_list<RendezvousMessage> messages) {
    strangers.push_back(connect_to(place));
    ASSERT_TRUE(strangers.back().is_open());
    for (const RendezvousMessage& message : messages) EXPECT_TRUE(send(strangers.back(), message));
  };
  come({});
  come({{.kind = Kind::kHello}});
  come({{.kind = Kind::kJoin, .worker = 1}});
  come({{.kind = Kind::kJoin, .proof = of_another_key, .worker = 1}});
  come({{.kind = Kind::kJoin, .proof = of_another_pair, .worker = 1}});
  come({{.kind = Kind::kJoin, .proof = of_another_key, .worker = -1}});
  come({{.kind = Kind::kJoin, .proof = of_another_key, .worker = 3}});  // of the other host
  const FileDescriptor memory(memfd_create("test", MFD_CLOEXEC));
  strangers.push_back(connect_to(place));
  send(strangers.back(), {.kind = Kind::kJoin, .worker = 1}, memory.get());
  const FileDescriptor gone = connect_to(place);
  run.go_to_others();
  run.give_and_take();
  for (const FileDescriptor& stranger : strangers) {
    const Received received = receive(stranger);
    EXPECT_FALSE(received.file.is_open());
    EXPECT_FALSE(received.message);
    EXPECT_TRUE(received.is_over);
  }
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    const auto ab = run.channel(a, b);
    const auto ba = run.channel(b, a);
    ASSERT_TRUE(ab && ba);
    EXPECT_TRUE(are_connected(*ab, *ba));
  }
}

TEST(HostRendezvous, GivesMemoryOnceToAWorkerThatSeemsToComeTwice) {
  Workers run("001");
  const FileDescriptor second = connect_to(run.place(0));
  run.go_to_others();
  const FileDescriptor third = connect_to(run.place(0));
  const RendezvousMessage join{
      .kind = Kind::kJoin, .proof = hmac(run.key, "lockstep memory, worker 1 to worker 0"), .worker = 1};
  EXPECT_TRUE(send(third, join));
  run.give_and_take();
  EXPECT_FALSE(receive(third).file.is_open());
  const auto a = run.channel(0, 1);
  const auto b = run.channel(1, 0);
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(are_connected(*a, *b));
}

TEST(HostRendezvous, TakesNoMemoryFromOneWhoWaitsInTheOthersPlace) {
  const std::string key = new_key();
  const FileDescriptor impostor = listen_at(rendezvous_name("memory of worker 0", key));
  ASSERT_TRUE(impostor.is_open());
  Workers run("0001", key);
  run.go_to_others();
  const PairMemory memory = PairMemory::create(ring_size_of(3));
  std::vector<FileDescriptor> guests;
  for (int i = 0; i < 2; ++i) {
    guests.push_back(accept_at(impostor));
    ASSERT_TRUE(guests.back().is_open());
    EXPECT_TRUE(send(guests.back(), {.kind = Kind::kWelcome}, memory.file()));
  }
  run.give_and_take();
  EXPECT_EQ(run.channel(1, 0), nullptr);
  EXPECT_EQ(run.channel(0, 1), nullptr);
  // The others do not suffer.
  const auto a = run.channel(1, 2);
  const auto b = run.channel(2, 1);
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(are_connected(*a, *b));
  EXPECT_NE(run.missing(0).find("workers 1, 2"), std::string::npos) << run.missing(0);
  EXPECT_NE(run.missing(1).find("worker 0"), std::string::npos) << run.missing(1);
  EXPECT_EQ(run.missing(3), "");
}

TEST(HostRendezvous, UsesNoMemoryThatOneOfBothDoesNotHave) {
  Workers run("001");
  run.go_to_others();
  run.give_and_take();
  run.outcomes[1] = "it has failed\n\n";
  EXPECT_EQ(run.channel(0, 1), nullptr);
  EXPECT_EQ(run.channel(1, 0), nullptr);
  EXPECT_NE(run.missing(0).find("it has failed"), std::string::npos) << run.missing(0);
  for (const char* wrong : {"", "\n", "shared"}) {
    run.outcomes[1] = wrong;
    run.outcomes[0] = wrong;
    EXPECT_EQ(run.channel(0, 1), nullptr);
  }
}

TEST(HostRendezvous, OfTwoRunsDoesNotMix) {
  Workers one("001");
  Workers two("001");
  one.go_to_others();
  two.go_to_others();
  one.give_and_take();
  two.give_and_take();
  const auto a = one.channel(0, 1);
  const auto b = two.channel(1, 0);
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(are_connected(*a, *b));
}

TEST(HostRendezvous, GivesUpWithoutAnErrorWhereNoMoreFilesMayBeOpen) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer opens files where it looks at an exception";
#endif
  Workers run("0001");
  run.go_to_others();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const FileDescriptor next(dup(0));
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  run.give_and_take();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(run.channel(0, 1), nullptr);
  EXPECT_EQ(run.channel(1, 0), nullptr);
  EXPECT_NE(run.missing(0).find("open files"), std::string::npos) << run.missing(0);
}

}  // namespace
}  // namespace lockstep::internal
