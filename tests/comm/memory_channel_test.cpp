// Bytes between two workers of a host, through memory that both map.
#include "lockstep/comm/network/wire/memory_channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::internal {
namespace {

using State = Transfer::State;

constexpr std::size_t kRing = std::size_t{1} << 16;
constexpr int kSoon = 10'000;  // milliseconds

/// Both ends, each with a mapping of its own.
struct Pair {
  explicit Pair(std::size_t ring_size = kRing) {
    std::array<int, 2> sockets = {};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) != 0) std::abort();
    PairMemory memory = PairMemory::create(ring_size);
    PairMemory mapped = PairMemory::map(memory.file(), ring_size);
    a = std::make_unique<MemoryChannel>(std::move(memory), 0, FileDescriptor(sockets[0]));
    b = std::make_unique<MemoryChannel>(std::move(mapped), 1, FileDescriptor(sockets[1]));
  }
  std::unique_ptr<MemoryChannel> a;
  std::unique_ptr<MemoryChannel> b;
};

/// Whether the channel is woken up before the time is over. False also where there was nothing to sleep for.
bool is_woken(MemoryChannel& channel, int milliseconds, bool for_room = false) {
  std::vector<pollfd> files;
  if (channel.watch(for_room, files).count() == 0) return false;
  return poll(files.data(), files.size(), milliseconds) > 0;
}

std::size_t fill(MemoryChannel& channel) {
  const std::vector<std::byte> bytes(10'000);
  std::size_t written = 0;
  while (true) {
    const Transfer transfer = channel.write(bytes);
    if (transfer.state != State::kDone) return written;
    written += transfer.bytes;
  }
}

TEST(MemoryChannel, CarriesBytesInTheirOrderInBothDirections) {
  const Pair pair;
  std::mt19937 random(3);
  const std::size_t count = 5 * kRing + 77;
  std::vector<std::byte> sent(count);
  for (std::byte& one : sent) one = static_cast<std::byte>(random());
  for (const auto& [from, to] : {std::pair(pair.a.get(), pair.b.get()), std::pair(pair.b.get(), pair.a.get())}) {
    std::vector<std::byte> got(count);
    std::size_t written = 0;
    std::size_t read = 0;
    while (read < count) {
      const std::size_t some = std::min<std::size_t>(1 + random() % 50'000, count - written);
      if (some > 0) written += from->write(std::span(sent).subspan(written, some)).bytes;
      const std::size_t most = std::min<std::size_t>(1 + random() % 50'000, count - read);
      read += to->read(std::span(got).subspan(read, most)).bytes;
    }
    EXPECT_EQ(got, sent);
  }
}

TEST(MemoryChannel, TakesNoMoreThanTheMemoryHolds) {
  const Pair pair;
  EXPECT_EQ(fill(*pair.a), kRing);
  EXPECT_EQ(fill(*pair.b), kRing);
  std::array<std::byte, 100> place = {};
  EXPECT_EQ(pair.b->read(place).bytes, place.size());
  EXPECT_EQ(fill(*pair.a), place.size());
}

TEST(MemoryChannel, WakesAReaderThatSleepsAndNoOther) {
  const Pair pair;
  const std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 10> place = {};
  EXPECT_FALSE(is_woken(*pair.a, 0));
  EXPECT_EQ(pair.b->write(bytes).bytes, 3U);
  std::vector<pollfd> files;
  EXPECT_EQ(pair.a->read(place).bytes, 3U);
  // Nobody sleeps: nothing is left to wake up for.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pair.b->write(bytes).bytes, 3U);
    EXPECT_EQ(pair.a->read(place).bytes, 3U);
    EXPECT_EQ(pair.a->read(place).state, State::kWantsRead);
  }
  EXPECT_FALSE(is_woken(*pair.a, 0));
  std::thread writer([&] { pair.b->write(bytes); });
  EXPECT_TRUE(is_woken(*pair.a, kSoon) || pair.a->watch(false, files).count() == 0);
  writer.join();
  EXPECT_EQ(pair.a->read(place).bytes, 3U);
}

TEST(MemoryChannel, DoesNotLetAReaderSleepWhereBytesAreThere) {
  const Pair pair;
  const std::array<std::byte, 1> one = {};
  pair.b->write(one);
  std::vector<pollfd> files;
  EXPECT_EQ(pair.a->watch(false, files).count(), 0);
  EXPECT_EQ(pair.b->watch(true, files).count(), 0);
  EXPECT_TRUE(files.empty());
}

TEST(MemoryChannel, WakesAWriterWhenThereIsRoomEnoughToBeWorthIt) {
  const Pair pair;
  fill(*pair.a);
  std::vector<pollfd> files;
  ASSERT_GT(pair.a->watch(true, files).count(), 0);
  std::vector<std::byte> place(kRing / 8);
  pair.b->read(place);
  EXPECT_EQ(poll(files.data(), files.size(), 0), 0);
  pair.b->read(place);
  EXPECT_EQ(poll(files.data(), files.size(), kSoon), 1);
  EXPECT_EQ(fill(*pair.a), kRing / 4);
}

TEST(MemoryChannel, GivesWhatWasWrittenBeforeTheOtherWorkerWasGone) {
  Pair pair;
  const std::vector<std::byte> bytes(1000, std::byte{7});
  pair.b->write(bytes);
  pair.b.reset();
  std::vector<std::byte> place(600);
  EXPECT_EQ(pair.a->read(place).bytes, 600U);
  std::vector<pollfd> files;
  pair.a->watch(false, files);
  EXPECT_EQ(pair.a->read(place).bytes, 400U);
  EXPECT_EQ(pair.a->read(place).state, State::kClosed);
  EXPECT_EQ(pair.a->write(bytes).state, State::kClosed);
}

TEST(MemoryChannel, WakesASleeperWhenTheOtherWorkerIsGone) {
  Pair pair;
  std::vector<pollfd> files;
  ASSERT_GT(pair.a->watch(false, files).count(), 0);
  pair.b.reset();
  EXPECT_EQ(poll(files.data(), files.size(), kSoon), 1);
  std::array<std::byte, 1> place = {};
  EXPECT_EQ(pair.a->read(place).state, State::kClosed);
}

TEST(MemoryChannel, SaysThatItsMemoryIsDamaged) {
  std::array<int, 2> sockets = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const FileDescriptor other(sockets[1]);
  PairMemory memory = PairMemory::create(kRing);
  const PairMemory mapped = PairMemory::map(memory.file(), kRing);
  MemoryChannel channel(std::move(memory), 0, FileDescriptor(sockets[0]));
  mapped.ring(1).written = kRing + 1;
  std::array<std::byte, 1> place = {};
  EXPECT_EQ(channel.read(place).state, State::kFailed);
  mapped.ring(0).read = 5;
  EXPECT_EQ(channel.write(place).state, State::kWantsWrite);
}

/// One byte after another, and both sleep between: a wake-up that is missed ends the test.
TEST(MemoryChannel, MissesNoWakeUp) {
  const Pair pair;
  const auto play = [](MemoryChannel& channel, bool begins) {
    std::array<std::byte, 1> one = {};
    std::vector<pollfd> files;
    for (int i = 0; i < 20'000; ++i) {
      if (begins) channel.write(one);
      while (channel.read(one).state == State::kWantsRead) {
        files.clear();
        if (channel.watch(false, files).count() == 0) continue;
        if (poll(files.data(), files.size(), kSoon) == 0) return i;
      }
      if (!begins) channel.write(one);
    }
    return 20'000;
  };
  int other = 0;
  std::thread thread([&] { other = play(*pair.b, false); });
  EXPECT_EQ(play(*pair.a, true), 20'000);
  thread.join();
  EXPECT_EQ(other, 20'000);
}

/// The writer waits for room, and the reader for bytes.
TEST(MemoryChannel, MissesNoWakeUpWhereTheMemoryIsFull) {
  const Pair pair(std::size_t{1} << 14);
  constexpr std::size_t kCount = std::size_t{64} << 20;
  std::size_t written = 0;
  std::thread thread([&] {
    const std::vector<std::byte> bytes(100'000);
    std::vector<pollfd> files;
    while (written < kCount) {
      const Transfer transfer = pair.b->write(std::span(bytes).first(std::min(bytes.size(), kCount - written)));
      written += transfer.bytes;
      files.clear();
      if (transfer.state == State::kDone || pair.b->watch(true, files).count() == 0) continue;
      if (poll(files.data(), files.size(), kSoon) == 0) return;
    }
  });
  std::vector<std::byte> place(70'000);
  std::size_t read = 0;
  std::vector<pollfd> files;
  while (read < kCount) {
    const Transfer transfer = pair.a->read(place);
    read += transfer.bytes;
    files.clear();
    if (transfer.state == State::kDone || pair.a->watch(false, files).count() == 0) continue;
    if (poll(files.data(), files.size(), kSoon) == 0) break;
  }
  thread.join();
  EXPECT_EQ(written, kCount);
  EXPECT_EQ(read, kCount);
}

}  // namespace
}  // namespace lockstep::internal
