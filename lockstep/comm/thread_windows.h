// What workers that are threads put into each other's windows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/windows.h"

namespace lockstep::internal::inline comm {

class WindowTable;

/// Puts that have been made and have not arrived, of all workers. Any thread may call.
class ThreadPuts {
 public:
  struct Put {
    uint64_t window;
    int64_t from;
    std::size_t offset;
    Windows::Bytes bytes;
  };

  explicit ThreadPuts(int64_t workers) : to_(static_cast<std::size_t>(workers)) {}

  void put(int64_t to, Put put) {
    const std::lock_guard<std::mutex> lock(mutex_);
    to_[static_cast<std::size_t>(to)].push_back(std::move(put));
  }
  /// Brings all that has been put into windows of worker `to`. What is wrong with one of them; otherwise empty.
  std::string bring(int64_t to, WindowTable& windows);

 private:
  std::mutex mutex_;
  std::vector<std::vector<Put>> to_;  // by worker; guarded by mutex_
};

}  // namespace lockstep::internal::comm
