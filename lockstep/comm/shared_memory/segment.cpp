#include "lockstep/comm/shared_memory/segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

/// First in the memory.
struct alignas(64) Segment::Header {
  static constexpr uint64_t kMark = 0x31706574736b636cu;  // "lckstep1"
  uint64_t mark = kMark;
  int64_t workers = 0;
  /// The number of committed calls in the upper 48 bits; in the lower 16 bits 1 + the worker whose reason ended the
  /// run, or 0 while it goes on.
  std::atomic<uint64_t> state = 0;
};

namespace {

constexpr std::size_t kHeaderBytes = 64;

std::size_t length_of(int64_t workers) {
  const auto count = static_cast<std::size_t>(workers);
  const std::size_t tables = kHeaderBytes + count * sizeof(WorkerArea) + count * count * sizeof(Ring);
  constexpr std::size_t kPage = 4096;
  return (tables + kPage - 1) / kPage * kPage + count * count * ring_size_of(workers);
}

uint64_t calls_of(uint64_t state) { return state >> 16; }
uint64_t verdict_of(uint64_t state) { return state & 0xffff; }

}  // namespace

Segment::Segment(SharedMemory memory, int64_t workers) : memory_(std::move(memory)), workers_(workers) {}

Segment::Header& Segment::header() const { return *std::launder(reinterpret_cast<Header*>(memory_.data())); }

WorkerArea& Segment::worker(int64_t index) const {
  static_assert(sizeof(Header) == kHeaderBytes);
  return *std::launder(reinterpret_cast<WorkerArea*>(memory_.data() + kHeaderBytes) + index);
}

Ring& Segment::ring(int64_t from, int64_t to) const {
  std::byte* const begin = memory_.data() + kHeaderBytes + static_cast<std::size_t>(workers_) * sizeof(WorkerArea);
  return *std::launder(reinterpret_cast<Ring*>(begin) + from * workers_ + to);
}

std::byte* Segment::ring_bytes(int64_t from, int64_t to) const {
  const auto pairs = static_cast<std::size_t>(workers_ * workers_);
  std::byte* const end = memory_.data() + memory_.length();
  return end - (pairs - static_cast<std::size_t>(from * workers_ + to)) * ring_size();
}

Segment Segment::create(int64_t workers) {
  Segment segment(SharedMemory::create(length_of(workers)), workers);
  new (segment.memory_.data()) Header{.workers = workers};
  for (int64_t w = 0; w < workers; ++w) new (&segment.worker(w)) WorkerArea;
  for (int64_t pair = 0; pair < workers * workers; ++pair) new (&segment.ring(0, pair)) Ring;
  return segment;
}

Segment Segment::map(int file, int64_t workers) {
  Segment segment(SharedMemory::map(file, length_of(workers)), workers);
  if (segment.header().mark == Header::kMark && segment.header().workers == workers) return segment;
  throw ClusterError("LS-CLUSTER-MEMORY", "the memory that worker 0 gave was not made for this job",
                     "start the workers again");
}

void Segment::end(int64_t worker, std::string_view reason) const noexcept {
  WorkerArea& self = this->worker(worker);
  std::atomic<uint64_t>& state = header().state;
  uint32_t none = 0;
  if (!has_ended() && self.reason_length.compare_exchange_strong(none, WorkerArea::kBeingWritten)) {
    // The text is complete before the verdict names its writer.
    const std::size_t count = std::min(reason.size(), WorkerArea::kLongestReason);
    std::memcpy(self.reason, reason.data(), count);
    self.reason_length.store(static_cast<uint32_t>(count) + 1);
    uint64_t now = state.load();
    while (verdict_of(now) == 0 && !state.compare_exchange_weak(now, now | static_cast<uint64_t>(worker + 1))) {
    }
  }
  // Another thread of this worker may be writing its reason: soon it is there. The bound is for a thread that the
  // system does not let run.
  for (int i = 0; !has_ended() && i < 1000; ++i) std::this_thread::yield();
  for (int64_t w = 0; w < workers_; ++w) wake(w);
}

bool Segment::has_ended() const { return verdict_of(header().state.load()) != 0; }

std::string Segment::ended() const {
  const uint64_t verdict = verdict_of(header().state.load());
  if (verdict == 0) return {};
  if (verdict > static_cast<uint64_t>(workers_)) return "the memory of the workers was damaged";
  const WorkerArea& judge = worker(static_cast<int64_t>(verdict) - 1);
  const uint32_t length = judge.reason_length.load();
  if (length <= 1 || length > WorkerArea::kLongestReason + 1) return "a worker ended the run without a reason";
  return {judge.reason, length - 1};
}

bool Segment::is_committed(uint64_t call) const { return calls_of(header().state.load()) >= call; }

bool Segment::commit(uint64_t call) const {
  std::atomic<uint64_t>& state = header().state;
  uint64_t now = state.load();
  while (true) {
    if (calls_of(now) >= call) return true;
    if (verdict_of(now) != 0) return false;
    if (state.compare_exchange_weak(now, call << 16)) return true;
  }
}

void Segment::wake(int64_t index) const {
  WorkerArea& other = worker(index);
  if (other.sleeps.load() == 0) return;
  other.doorbell.fetch_add(1);
  syscall(SYS_futex, &other.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Segment::sleep(std::atomic<uint32_t>& word, uint32_t value, int64_t most) {
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec time = {.tv_sec = most / kSecond, .tv_nsec = most % kSecond};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

}  // namespace lockstep::internal::comm
