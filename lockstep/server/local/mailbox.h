// Messages from any thread to one.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::internal::inline server {

template <class Message>
class Mailbox {
 public:
  /// Any thread. What comes after close() is dropped.
  void put(Message message) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_closed_) return;
      messages_.push_back(std::move(message));
    }
    came_.notify_one();
  }
  /// Waits for the next one; nothing once it is closed.
  std::optional<Message> take() {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [&] { return is_closed_ || !messages_.empty(); });
    if (is_closed_) return std::nullopt;
    Message first = std::move(messages_.front());
    messages_.pop_front();
    return first;
  }
  /// All that have come; waits for the first one. Nothing once it is closed.
  std::deque<Message> take_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [&] { return is_closed_ || !messages_.empty(); });
    if (is_closed_) return {};
    return std::exchange(messages_, {});
  }
  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    came_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Message> messages_;  // guarded by mutex_
  bool is_closed_ = false;        // guarded by mutex_
};

}  // namespace lockstep::internal::server
