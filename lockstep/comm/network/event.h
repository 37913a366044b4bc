// Lets coroutines wait for what other coroutines do.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/comm/network/wire/asio.h"

namespace lockstep::internal::inline comm {

/// Coroutines of one io_context wait for it, any number at a time. A notification is not remembered:
/// look at what you wait for, and then wait, without a co_await between.
class Event {
 public:
  using Clock = asio::steady_timer::clock_type;

  explicit Event(asio::io_context& context) : context_(context) {}

  /// Until notify(), or `until`.
  asio::awaitable<void> wait(Clock::time_point until) {
    asio::steady_timer timer(context_, until);
    waiting_.push_back(&timer);
    std::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &timer));
  }
  void notify() {
    for (asio::steady_timer* const timer : waiting_) timer->cancel();
  }

 private:
  asio::io_context& context_;
  std::vector<asio::steady_timer*> waiting_;
};

}  // namespace lockstep::internal::comm
