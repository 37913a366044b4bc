// Memory of a worker into which the others put bytes while it computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

/// Bytes that travel beside the calls of a World, and so may be on their way while workers compute. One thread at a
/// time calls it, and none while one is in a call of the World. Any thread may call close() at any time.
///
/// What a worker puts before its n-th call of agree() or exchange() is in the others' memory when their n-th call has
/// returned, if that is exchange(), or else their next exchange(). It may be there earlier, but only while the worker
/// that owns the memory makes a call or is in progress(). The puts of one worker arrive in their order. Nothing here
/// waits, and no error is thrown for another worker: it is thrown by the next call of the World.
///
/// A window is a number. What is put into a window that the other worker has not opened, or has closed, is lost.
class Windows {
 public:
  /// Bytes, and what keeps their memory alive.
  struct Bytes {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };

  virtual ~Windows() = default;

  /// The least number above those of all windows that this worker has opened. From 1.
  virtual uint64_t unused() const = 0;
  /// From now on worker w puts into `memory[w]`, which `owner` keeps alive; the entry of this worker itself is ignored.
  /// `window` is not below unused().
  virtual void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) = 0;
  /// What arrives later is lost. Does nothing for a window that is not open.
  virtual void close(uint64_t window) noexcept = 0;

  /// Puts the bytes into another worker's window, from `offset` of the memory that is meant for this worker. They do
  /// not change until a later call of the World has returned. Bytes that the other's memory has no room for end the
  /// run.
  virtual void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) = 0;
  /// Moves what can be moved now.
  virtual void progress() noexcept = 0;
  /// How many puts of a worker into this worker's window have arrived as a whole.
  virtual uint64_t arrived(uint64_t window, int64_t worker) const = 0;
};

}  // namespace lockstep
