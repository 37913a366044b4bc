#include "lockstep/comm/network/wire/memory_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace lockstep::internal::inline comm {

/// First in the memory. Both processes are of one build.
struct PairMemory::Tables {
  Ring rings[2];
  struct alignas(64) Waits {
    std::atomic<uint32_t> what = 0;
  } waits[2];
};

namespace {

constexpr std::size_t kTableBytes = 4096;

std::size_t length_of(std::size_t ring_size) { return kTableBytes + 2 * ring_size; }

}  // namespace

PairMemory::PairMemory(SharedMemory memory, std::size_t ring_size)
    : memory_(std::move(memory)), ring_size_(ring_size) {}

PairMemory PairMemory::create(std::size_t ring_size) {
  static_assert(sizeof(Tables) <= kTableBytes);
  PairMemory pair(SharedMemory::create(length_of(ring_size)), ring_size);
  new (pair.memory_.data()) Tables;
  return pair;
}

PairMemory PairMemory::map(int file, std::size_t ring_size) {
  PairMemory pair(SharedMemory::map(file, length_of(ring_size)), ring_size);
  pair.close_file();
  return pair;
}

PairMemory::Tables& PairMemory::tables() const { return *std::launder(reinterpret_cast<Tables*>(memory_.data())); }
Ring& PairMemory::ring(int from) const { return tables().rings[from]; }
std::atomic<uint32_t>& PairMemory::waits(int worker) const { return tables().waits[worker].what; }
std::byte* PairMemory::ring_bytes(int from) const {
  return memory_.data() + kTableBytes + static_cast<std::size_t>(from) * ring_size_;
}

MemoryChannel::MemoryChannel(PairMemory memory, int self, FileDescriptor bell)
    : memory_(std::move(memory)),
      bell_(std::move(bell)),
      out_(memory_.ring(self), memory_.ring_bytes(self), memory_.ring_size()),
      in_(memory_.ring(1 - self), memory_.ring_bytes(1 - self), memory_.ring_size()),
      my_waits_(memory_.waits(self)),
      other_waits_(memory_.waits(1 - self)) {}

Transfer MemoryChannel::read(std::span<std::byte> place) {
  end_sleep();
  // Invariant: this is looked at after is_closed_, so that nothing is missed that came before the end.
  const std::size_t there = in_.there();
  if (in_.is_damaged(there)) {
    return {.state = Transfer::State::kFailed, .error = EPROTO, .text = "the memory of both workers was damaged"};
  }
  if (there == 0) return {.state = is_closed_ ? Transfer::State::kClosed : Transfer::State::kWantsRead};
  const std::size_t count = std::min({there, place.size(), kPieceOfRing});
  in_.take(place.data(), count);
  in_.release();
  // Not for each small piece: a wake-up costs more than that.
  if (there == count || memory_.ring_size() - (there - count) >= memory_.ring_size() / 4) ring_for(PairMemory::kRoom);
  return {.bytes = count};
}

Transfer MemoryChannel::write(std::span<const std::byte> bytes) {
  end_sleep();
  if (is_closed_) return {.state = Transfer::State::kClosed};
  const std::size_t count = std::min({out_.room(), bytes.size(), kPieceOfRing});
  if (count == 0) return {.state = Transfer::State::kWantsWrite};
  out_.put(bytes.data(), count);
  out_.publish();
  ring_for(PairMemory::kBytes);
  return {.bytes = count};
}

std::chrono::nanoseconds MemoryChannel::watch(bool for_room, std::vector<pollfd>& files) {
  end_sleep();
  may_be_rung_for_ = true;
  // The other side looks here after it has moved its position, and this side looks at the position after this: one of
  // both sees what the other has done.
  my_waits_.store(for_room ? PairMemory::kBytes | PairMemory::kRoom : PairMemory::kBytes);
  const bool has_room = for_room && out_.room() > 0;
  if (is_closed_ || has_room || in_.there() > 0) return std::chrono::nanoseconds::zero();
  files.push_back({.fd = bell_.get(), .events = POLLIN, .revents = 0});
  return std::chrono::nanoseconds::max();
}

void MemoryChannel::end_sleep() {
  if (!std::exchange(may_be_rung_for_, false)) return;
  if (my_waits_.exchange(0) == 0) ++rung_;
  // One who rings clears the word first, so a ring may come later than this: then it is heard after another sleep.
  char one = 0;
  ssize_t got = 0;
  do {
    got = recv(bell_.get(), &one, sizeof(one), MSG_DONTWAIT);
  } while (got > 0 && --rung_ > 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) is_closed_ = true;
}

void MemoryChannel::ring_for(uint32_t what) {
  if ((other_waits_.load() & what) == 0 || other_waits_.exchange(0) == 0) return;
  // Where the other worker is gone, the next sleep ends at once and finds that.
  const char one = 1;
  [[maybe_unused]] const ssize_t sent = send(bell_.get(), &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace lockstep::internal::comm
