#include "lockstep/comm/network/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

using asio::use_awaitable;
using std::chrono::milliseconds;
using Gone = EndOfRun::Gone;
using Kind = Frame::Kind;

}  // namespace

Control::Control(asio::io_context& context, Team team, int64_t worker, milliseconds lost, RunState& state)
    : context_(context),
      members_(std::move(team.members)),
      worker_(worker),
      lost_(lost),
      failure_text_(fmt::format("{} failed in its control plane: it had no memory",
                                members_[static_cast<std::size_t>(worker)].name())),
      tick_(heartbeat_interval(lost)),
      state_(state),
      datagrams_(std::move(team.datagrams)),
      peers_(members_.size()),
      end_of_run_(static_cast<int64_t>(members_.size()), worker,
                  {.freeze = [this] { return state_.freeze(); },
                   .send = [this](int64_t to,
                                  const Frame& frame) { peers_[static_cast<std::size_t>(to)].connection->send(frame); },
                   .end =
                       [this](const RunEnd& end) {
                         state_.set_end(end);
                         // A worker to which nothing goes by TCP learns it as well.
                         datagrams_->send(end_of_run_.end_frame());
                       }}) {
  for (std::size_t w = 0; w < peers_.size(); ++w) {
    peers_[w].connection = std::move(team.connections[w]);
    if (static_cast<int64_t>(w) == worker_) continue;
    asio::co_spawn(context_, listen(static_cast<int64_t>(w)), rethrow);
  }
  datagrams_->start(members_, worker_, team.datagram_key, [this](int64_t from, const Frame& frame) {
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    peer.has_been_heard = true;
    // Where its connection broke, it can say that the run has ended, and answer nothing.
    if (peer.connection->is_open() || frame.kind == Kind::kEnd) receive(from, frame);
  });
  asio::co_spawn(context_, beat(), rethrow);
  context_.restart();  // it was stopped when the workers had been connected
  try {
    thread_ = start_service_thread(worker_, "control plane", [this] { run(); });
  } catch (const ClusterError&) {
    leave(false);
    throw;
  }
}

Control::~Control() {
  asio::post(context_, [this] {
    leave(false);
    context_.stop();
  });
  thread_.join();
}

void Control::run() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception&) {
      // No memory, say, for what has just come. The others must not wait for this worker.
      try {
        end_of_run_.notice(failure_text_);
      } catch (const std::exception&) {
        // The others miss this worker's heartbeats if that is all the memory there is.
      }
    }
  }
}

void Control::notice(const std::string& reason) {
  asio::post(context_, [this, reason] { end_of_run_.notice(reason); });
}

void Control::notice_broken(int64_t worker, const std::string& how) {
  // Where the process has ended, the thread learns it in this tick, and says so.
  asio::post(context_, [this, worker, how] {
    const auto timer = std::make_shared<asio::steady_timer>(context_, 2 * tick_);
    timer->async_wait([this, timer, worker, how](std::error_code) {
      if (peers_[static_cast<std::size_t>(worker)].is_over) return;
      end_of_run_.notice(fmt::format("the connection for data between worker {} and {} broke ({}); both are alive",
                                     worker_, members_[static_cast<std::size_t>(worker)].name(), how));
    });
  });
}

void Control::leave_at_exit() {
  const auto left = std::make_shared<std::promise<void>>();
  asio::post(context_, [this, left] {
    leave(true);
    context_.stop();  // it does nothing while static objects and OpenSSL are destroyed
    left->set_value();
  });
  left->get_future().wait_for(milliseconds(200));
}

void Control::leave(bool at_exit) {
  if (std::exchange(has_left_, true)) return;
  const std::string& known = end_of_run_.reason();
  const std::string mine = fmt::format("{} {}", members_[static_cast<std::size_t>(worker_)].name(),
                                       at_exit ? "ended its program in the middle of the run" : "left the run");
  const Frame left{.kind = Kind::kLeft, .calls = state_.freeze(), .text = known.empty() ? mine : known};
  for (const Peer& peer : peers_) {
    if (!peer.connection) continue;
    peer.connection->send(left);
    if (!at_exit) peer.connection->close();
  }
}

asio::awaitable<void> Control::listen(int64_t worker) {
  Peer& peer = peers_[static_cast<std::size_t>(worker)];
  const std::shared_ptr<Connection> connection = peer.connection;
  const std::string name = members_[static_cast<std::size_t>(worker)].name();
  Gone how = Gone::kDead;
  std::string reason = fmt::format("{} is gone: it was killed or crashed", name);
  try {
    while (true) {
      const Frame frame = co_await connection->read();
      peer.has_been_heard = true;
      receive(worker, frame);
    }
  } catch (const ConnectionError& error) {
    if (error.kind != ConnectionError::Kind::kClosed) {
      how = Gone::kUnreachable;  // it may live
      reason = fmt::format("the connection between worker {} and {} broke: {}", worker_, name, error.what());
    }
  }
  if (!peer.is_over && !has_left_) lose(worker, how, peer.calls, reason);
}

void Control::lose(int64_t worker, Gone how, const Calls& calls, const std::string& reason) {
  Peer& peer = peers_[static_cast<std::size_t>(worker)];
  peer.is_over = how != Gone::kUnreachable;
  end_of_run_.set_gone(worker, how, calls);
  end_of_run_.notice(reason);
}

void Control::receive(int64_t worker, const Frame& frame) {
  if (has_left_) return;  // it has said how far it is, and decides no more
  if (frame.kind == Kind::kLeft) return lose(worker, Gone::kLeft, frame.calls, frame.text);
  if (frame.kind == Kind::kHeartbeat) peers_[static_cast<std::size_t>(worker)].calls = frame.calls;
  end_of_run_.receive(worker, frame);
}

asio::awaitable<void> Control::beat() {
  asio::steady_timer timer(context_);
  auto next = asio::steady_timer::clock_type::now();
  while (!has_left_) {
    const Frame heartbeat{.kind = Kind::kHeartbeat, .calls = state_.calls()};
    for (const Peer& peer : peers_) {
      if (peer.connection && !peer.is_over) peer.connection->send(heartbeat);
    }
    datagrams_->send(end_of_run_.has_ended() ? end_of_run_.end_frame() : heartbeat);
    check_heartbeats();
    // After a time in which nothing ran, no tick is made up for.
    next = std::max(next + tick_, asio::steady_timer::clock_type::now() + tick_ / 2);
    timer.expires_at(next);
    co_await timer.async_wait(use_awaitable);
  }
}

void Control::check_heartbeats() {
  for (std::size_t w = 0; w < peers_.size(); ++w) {
    Peer& peer = peers_[w];
    if (!peer.connection || peer.is_over) continue;
    peer.silent_ticks = std::exchange(peer.has_been_heard, false) ? 0 : peer.silent_ticks + 1;
    if (peer.silent_ticks < lost_ / tick_) continue;
    peer.silent_ticks = 0;
    lose(static_cast<int64_t>(w), Gone::kUnreachable, peer.calls,
         fmt::format("{} is frozen or cut off: worker {} has heard nothing from it for {:.1f} s", members_[w].name(),
                     worker_, std::chrono::duration<double>(lost_).count()));
  }
}

}  // namespace lockstep::internal
