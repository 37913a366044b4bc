// The memory that workers of a host share, and the messages before it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/shared_memory/local_socket.h"
#include "lockstep/comm/shared_memory/rendezvous_messages.h"
#include "lockstep/comm/shared_memory/segment.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;

TEST(Segment, ShowsEveryProcessThatMapsItTheSameBytes) {
  const Segment mine = Segment::create(3);
  const Segment other = Segment::map(mine.file(), 3);
  EXPECT_NE(&mine.worker(0), &other.worker(0));
  mine.worker(2).taken = 7;
  EXPECT_EQ(other.worker(2).taken, 7U);
  for (int64_t from = 0; from < 3; ++from) {
    for (int64_t to = 0; to < 3; ++to) {
      mine.ring(from, to).written = static_cast<uint64_t>(10 * from + to);
      mine.ring_bytes(from, to)[0] = static_cast<std::byte>(from);
      mine.ring_bytes(from, to)[mine.ring_size() - 1] = static_cast<std::byte>(to);
    }
  }
  for (int64_t from = 0; from < 3; ++from) {
    for (int64_t to = 0; to < 3; ++to) {
      EXPECT_EQ(other.ring(from, to).written, static_cast<uint64_t>(10 * from + to));
      EXPECT_EQ(other.ring_bytes(from, to)[0], static_cast<std::byte>(from));
      EXPECT_EQ(other.ring_bytes(from, to)[other.ring_size() - 1], static_cast<std::byte>(to));
    }
  }
}

TEST(Segment, KeepsTheFirstReasonOfAllWorkersAndTellsItToAll) {
  const Segment mine = Segment::create(3);
  const Segment other = Segment::map(mine.file(), 3);
  EXPECT_FALSE(mine.has_ended());
  EXPECT_EQ(mine.ended(), "");
  other.end(1, "the first");
  mine.end(0, "the second");
  other.end(1, "the third");
  EXPECT_EQ(mine.ended(), "the first");
  EXPECT_EQ(other.ended(), "the first");
}

TEST(Segment, KeepsOneReasonWhereManyThreadsEndTheRunAtOnce) {
  for (int round = 0; round < 200; ++round) {
    const Segment segment = Segment::create(4);
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] { segment.end(t / 2, "reason " + std::to_string(t) + std::string(1000, '.')); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string reason = segment.ended();
    EXPECT_EQ(reason.size(), 1008U);
    EXPECT_EQ(reason.substr(0, 7), "reason ");
    EXPECT_EQ(segment.ended(), reason);
  }
}

TEST(Segment, CutsALongReason) {
  const Segment segment = Segment::create(2);
  segment.end(1, std::string(100'000, 'x'));
  EXPECT_EQ(segment.ended(), std::string(WorkerArea::kLongestReason, 'x'));
}

TEST(Segment, WakesAWorkerThatSleeps) {
  const Segment segment = Segment::create(2);
  const Segment other = Segment::map(segment.file(), 2);
  std::thread waker([&] {
    other.worker(1).taken.store(1);
    other.wake(0);
  });
  constexpr int64_t kMinute = 60'000'000'000;
  while (segment.worker(1).taken.load() == 0) {
    segment.wait(0, kMinute, [&] { return segment.worker(1).taken.load() != 0; });
  }
  waker.join();
}

TEST(Segment, IsNotMappedFromAnotherFile) {
  const Segment segment = Segment::create(2);
  const auto map = [&](int file, int64_t workers) {
    expect_error<ClusterError>([&] { Segment::map(file, workers); }, "LS-CLUSTER-MEMORY", {});
  };
  map(segment.file(), 3);
  map(-1, 2);
  const int empty = memfd_create("test", MFD_CLOEXEC);
  map(empty, 2);
  ASSERT_EQ(ftruncate(empty, lseek(segment.file(), 0, SEEK_END)), 0);
  map(empty, 2);
  close(empty);
}

TEST(Segment, HasAFileThatMayGrowAndNotShrink) {
  const Segment segment = Segment::create(2);
  EXPECT_NE(ftruncate(segment.file(), 0), 0);
  EXPECT_EQ(ftruncate(segment.file(), static_cast<off_t>(segment.length()) + 4096), 0);
  EXPECT_NE(ftruncate(segment.file(), static_cast<off_t>(segment.length())), 0);
  const Segment other = Segment::map(segment.file(), 2);  // a worker that comes later
  EXPECT_EQ(fcntl(other.file(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(fcntl(segment.file(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

RC_GTEST_PROP(RendezvousMessage, ComesBackFromItsBytes, ()) {
  RendezvousMessage message;
  message.kind = static_cast<RendezvousMessage::Kind>(*rc::gen::inRange(1, 6));
  for (auto& byte : message.nonce) byte = *rc::gen::arbitrary<unsigned char>();
  for (auto& byte : message.proof) byte = *rc::gen::arbitrary<unsigned char>();
  message.worker = *rc::gen::arbitrary<int64_t>();
  message.num_workers = *rc::gen::arbitrary<int64_t>();
  message.text = *rc::gen::arbitrary<std::string>();
  const auto back = decode_rendezvous(encode(message));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->kind == message.kind);
  RC_ASSERT(back->nonce == message.nonce);
  RC_ASSERT(back->proof == message.proof);
  RC_ASSERT(back->worker == message.worker);
  RC_ASSERT(back->num_workers == message.num_workers);
  RC_ASSERT(back->text == message.text);
}

RC_GTEST_PROP(RendezvousMessage, OfAnyBytesIsReadOrRefused, ()) {
  std::string bytes = encode(RendezvousMessage{.text = *rc::gen::arbitrary<std::string>()});
  bytes.resize(static_cast<std::size_t>(*rc::gen::inRange(0, 200)));
  if (!bytes.empty()) bytes[static_cast<std::size_t>(*rc::gen::inRange<int>(0, bytes.size()))] ^= 0x55;
  decode_rendezvous(bytes);
  decode_rendezvous(*rc::gen::arbitrary<std::string>());
}

TEST(RendezvousMessage, LongerThanAllowedIsCutOrRefused) {
  const std::string bytes = encode(RendezvousMessage{.text = std::string(3 * kLongestText, 'x')});
  ASSERT_LE(bytes.size(), kLongestMessage);
  EXPECT_EQ(decode_rendezvous(bytes)->text, std::string(kLongestText, 'x'));
  EXPECT_FALSE(decode_rendezvous(bytes + "y"));
}

TEST(Proof, HoldsForOneSecretOneSideAndOnePairOfNumbersOnly) {
  const Nonce a = fresh_nonce();
  const Nonce b = fresh_nonce();
  ASSERT_NE(a, b);
  const Proof proof = proof_of("secret", "worker", a, b);
  EXPECT_TRUE(equal(proof, proof_of("secret", "worker", a, b)));
  EXPECT_FALSE(equal(proof, proof_of("secres", "worker", a, b)));
  EXPECT_FALSE(equal(proof, proof_of("", "worker", a, b)));
  EXPECT_FALSE(equal(proof, proof_of("secret", "worker 0", a, b)));
  EXPECT_FALSE(equal(proof, proof_of("secret", "worker", b, a)));
  EXPECT_FALSE(equal(proof, proof_of("secret", "worker", a, fresh_nonce())));
}

TEST(RendezvousName, DependsOnTheJobAndItsSecret) {
  EXPECT_EQ(rendezvous_name("job", "secret"), rendezvous_name("job", "secret"));
  EXPECT_NE(rendezvous_name("job", "secret"), rendezvous_name("job2", "secret"));
  EXPECT_NE(rendezvous_name("job", "secret"), rendezvous_name("job", ""));
}

TEST(LocalSocket, CarriesMessagesWithAFileAndNamesTheOtherProcess) {
  const std::string place = "test-" + std::to_string(getpid());
  EXPECT_LT(connect_to(place).get(), 0);
  const FileDescriptor listener = listen_at(place);
  ASSERT_GE(listener.get(), 0);
  EXPECT_LT(listen_at(place).get(), 0) << "two wait at one place";
  EXPECT_LT(accept_at(listener).get(), 0);
  FileDescriptor guest = connect_to(place);
  const FileDescriptor host = accept_at(listener);
  ASSERT_GE(host.get(), 0);
  EXPECT_EQ(credentials_of(host).process, getpid());
  EXPECT_TRUE(credentials_of(host).is_same_user);

  EXPECT_FALSE(receive(host).message);
  EXPECT_FALSE(receive(host).is_over);
  const Segment segment = Segment::create(2);
  ASSERT_TRUE(send(guest, {.kind = RendezvousMessage::Kind::kJoin, .text = "first"}));
  ASSERT_TRUE(send(guest, {.kind = RendezvousMessage::Kind::kWelcome, .text = "second"}, segment.file()));
  EXPECT_EQ(receive(host).message->text, "first");
  const Received second = receive(host);
  EXPECT_EQ(second.message->text, "second");
  const Segment same = Segment::map(second.file.get(), 2);
  segment.worker(0).heartbeats = 5;
  EXPECT_EQ(same.worker(0).heartbeats, 5U);

  guest = FileDescriptor();
  EXPECT_TRUE(receive(host).is_over);
  EXPECT_FALSE(send(host, {}));
}

}  // namespace
}  // namespace lockstep::internal
