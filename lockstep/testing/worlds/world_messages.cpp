// The messages that the checks of worlds exchange: their bytes, and the memory around them.
#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kUnwritten{0x5A};  // in memory that an exchange fills
constexpr std::byte kReused{0xEE};

/// Writes the bytes of `key` that begin at `first`, a multiple of 8.
void fill(std::span<std::byte> bytes, uint64_t key, std::size_t first = 0) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = Random(key + (first + at) / 8).next();
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

/// Requires that `found` has the bytes that `expected(first, bytes)` writes.
template <class Expected>
void expect_bytes(const std::string& what, std::span<const std::byte> found, const Expected& expected) {
  std::array<std::byte, 4096> right;
  for (std::size_t first = 0; first < found.size(); first += right.size()) {
    const auto part = found.subspan(first, std::min(right.size(), found.size() - first));
    expected(first, std::span(right).first(part.size()));
    if (std::memcmp(part.data(), right.data(), part.size()) == 0) continue;
    const auto differs = std::mismatch(part.begin(), part.end(), right.begin());
    const auto at = first + static_cast<std::size_t>(differs.first - part.begin());
    throw Finding(fmt::format("byte {} of the {} bytes {} is 0x{:02x}, expected 0x{:02x}", at, found.size(), what,
                              std::to_integer<int>(*differs.first), std::to_integer<int>(*differs.second)));
  }
}

void expect_all(const std::string& what, std::span<const std::byte> found, std::byte value) {
  expect_bytes(what, found,
               [&](std::size_t, std::span<std::byte> right) { std::fill(right.begin(), right.end(), value); });
}

void expect_filled(const std::string& what, std::span<const std::byte> found, uint64_t key) {
  expect_bytes(what, found, [&](std::size_t first, std::span<std::byte> right) { fill(right, key, first); });
}

}  // namespace

Messages::Messages(const Worker& worker, const Shape& shape, uint64_t round)
    : index_(worker.index()), workers_(worker.workers()), round_(round), same_for_all_(shape.same_for_all) {
  for (int64_t w = 0; w < workers_; ++w) {
    const bool mine = w == index_;
    if (!same_for_all_ || w == 0) {
      to_memory_.push_back(guarded(mine && !same_for_all_ ? 77 : shape.size(index_, w), shape.to_offset));
      fill(to_memory_.back().bytes(), key(index_, w));
    }
    from_memory_.push_back(guarded(mine ? 33 : shape.size(w, index_), shape.from_offset));
  }
  for (auto& memory : from_memory_) from_.push_back(memory.bytes());
  for (int64_t w = 0; w < workers_; ++w) {
    const Memory& memory = to_memory_[same_for_all_ ? 0 : static_cast<std::size_t>(w)];
    to_.push_back(memory.bytes());
  }
}

Messages::Memory Messages::guarded(std::size_t size, std::size_t offset) {
  Memory memory{std::vector<std::byte>(size + offset + 3 * kGuard, kGuardByte), 0, size};
  const auto address = reinterpret_cast<std::uintptr_t>(memory.all.data());
  memory.begin = kGuard + (kGuard - address % kGuard) % kGuard + offset;
  const auto bytes = memory.bytes();
  std::fill(bytes.begin(), bytes.end(), kUnwritten);
  return memory;
}

uint64_t Messages::key(int64_t from, int64_t to) const {
  const auto pair = static_cast<uint64_t>(same_for_all_ ? from * 64 : from * 64 + to + 1);
  return Random(round_ * 8192 + pair).next();
}

void Messages::exchange(Worker& worker) {
  worker.exchange(to_, from_);
  expect_received();
  expect_untouched();
}

void Messages::expect_received() const {
  for (int64_t w = 0; w < workers_; ++w) {
    if (w == index_) continue;
    expect_filled(fmt::format("that worker {} received from worker {} in round {}", index_, w, round_),
                  from_[static_cast<std::size_t>(w)], key(w, index_));
  }
}

void Messages::expect_guards(const std::string& what, const Memory& memory) {
  const std::span<const std::byte> all(memory.all);
  expect_all("before " + what, all.first(memory.begin), kGuardByte);
  expect_all("after " + what, all.subspan(memory.begin + memory.size), kGuardByte);
}

void Messages::expect_untouched() const {
  for (std::size_t w = 0; w < from_memory_.size(); ++w) {
    const auto other = static_cast<int64_t>(w);
    expect_guards(fmt::format("what worker {} received from worker {}", index_, other), from_memory_[w]);
    if (other == index_) {
      expect_all(fmt::format("of worker {}'s own entry of `from`", index_), from_memory_[w].bytes(), kUnwritten);
    }
  }
  for (std::size_t w = 0; w < to_memory_.size(); ++w) {
    const std::string what = fmt::format("that worker {} sent to worker {}", index_, w);
    expect_guards("those " + what, to_memory_[w]);
    expect_filled(what, to_memory_[w].bytes(), key(index_, static_cast<int64_t>(w)));
  }
}

void Messages::reuse() {
  for (auto* memories : {&to_memory_, &from_memory_}) {
    for (Memory& memory : *memories) std::fill(memory.all.begin(), memory.all.end(), kReused);
  }
}

void Messages::expect_reused() const {
  for (const auto* memories : {&to_memory_, &from_memory_}) {
    for (std::size_t w = 0; w < memories->size(); ++w) {
      expect_all(fmt::format("of memory that worker {} used for another purpose when its exchange with worker {} was "
                             "over",
                             index_, w),
                 (*memories)[w].all, kReused);
    }
  }
}

void Messages::expect_size(int64_t from, std::size_t size) {
  const auto w = static_cast<std::size_t>(from);
  from_memory_[w] = guarded(size, 0);
  from_[w] = from_memory_[w].bytes();
}

}  // namespace lockstep::internal::testing
