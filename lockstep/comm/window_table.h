// The windows that a worker has opened, for what brings the bytes that others put there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace lockstep::internal::inline comm {

/// Why a put of worker `from` into a window of worker `to` has no place.
std::string objection_to_put(int64_t from, int64_t to, uint64_t offset, uint64_t bytes);

/// Any thread may call.
class WindowTable {
 public:
  // See Windows.
  uint64_t unused() const;
  void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner);
  void close(uint64_t window) noexcept;
  uint64_t arrived(uint64_t window, int64_t worker) const;

  /// Where the bytes of a put go; without `owner`: nowhere, because there is no such window.
  struct Place {
    std::span<std::byte> memory = {};
    std::shared_ptr<void> owner = nullptr;
    bool fits = true;
  };
  Place place_of(uint64_t window, int64_t worker, uint64_t offset, uint64_t bytes) const;
  /// A put of this worker has arrived as a whole.
  void count(uint64_t window, int64_t worker) noexcept;

 private:
  struct Window {
    std::vector<std::span<std::byte>> memory;  // by worker
    std::shared_ptr<void> owner;
    std::vector<uint64_t> arrived;  // by worker
  };
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<uint64_t, Window> windows_;
  uint64_t unused_ = 1;
};

}  // namespace lockstep::internal::comm
