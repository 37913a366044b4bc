#include "lockstep/comm/window_table.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

std::string objection_to_put(int64_t from, int64_t to, uint64_t offset, uint64_t bytes) {
  return fmt::format("worker {} put {} bytes at {} into a window of worker {}, which has no room there", from, bytes,
                     offset, to);
}

void WindowTable::open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) {
  std::vector<uint64_t> arrived(memory.size());
  Window made{.memory = std::move(memory), .owner = std::move(owner), .arrived = std::move(arrived)};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (window < unused_) {
    throw InternalError("LS-INTERNAL", fmt::format("window {} has been opened before", window), "please report it");
  }
  windows_.emplace(window, std::move(made));
  unused_ = window + 1;
}

uint64_t WindowTable::unused() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return unused_;
}

void WindowTable::close(uint64_t window) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  windows_.erase(window);
}

uint64_t WindowTable::arrived(uint64_t window, int64_t worker) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = windows_.find(window);
  return found == windows_.end() ? 0 : found->second.arrived[static_cast<std::size_t>(worker)];
}

WindowTable::Place WindowTable::place_of(uint64_t window, int64_t worker, uint64_t offset, uint64_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = windows_.find(window);
  if (found == windows_.end()) return {};
  const std::span<std::byte> memory = found->second.memory[static_cast<std::size_t>(worker)];
  if (offset > memory.size() || bytes > memory.size() - offset) return {.fits = false};
  return {.memory = memory.subspan(offset, bytes), .owner = found->second.owner};
}

void WindowTable::count(uint64_t window, int64_t worker) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = windows_.find(window);
  if (found != windows_.end()) ++found->second.arrived[static_cast<std::size_t>(worker)];
}

}  // namespace lockstep::internal::comm
