#include "lockstep/comm/network/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "lockstep/comm/failure/stopped_process.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using std::chrono::milliseconds;
using Gone = EndOfRun::Gone;
using Kind = Frame::Kind;
using Noticed = PeerError::Noticed;

/// How long a worker whose connection broke may take to answer. Where nobody listens there any more, that is known
/// sooner.
constexpr milliseconds kLongestQuestion{300};
constexpr milliseconds kPauseBeforeNextQuestion{10};

}  // namespace

Control::Control(asio::io_context& context, Team team, int64_t worker, milliseconds lost, NetworkRunState& state)
    : context_(context),
      members_(std::move(team.members)),
      worker_(worker),
      lost_(lost),
      failure_text_(
          encode(RunFailure{.text = fmt::format("{} had no memory", members_[static_cast<std::size_t>(worker)].name()),
                            .worker = worker,
                            .noticed = Noticed::kFailed})),
      tick_(heartbeat_interval(lost)),
      state_(state),
      phases_(static_cast<int64_t>(members_.size())),
      calls_(static_cast<int64_t>(members_.size())),
      datagrams_(std::move(team.datagrams)),
      keys_(team.keys),
      peers_(members_.size()),
      are_all_neighbours_(static_cast<int64_t>(members_.size()) <= team.most_direct),
      end_of_run_(static_cast<int64_t>(members_.size()), worker,
                  {.freeze = [this] { return state_.freeze(); },
                   .send = [this](int64_t to, const Frame& frame) { tell(to, frame); },
                   .end =
                       [this](const RunEnd& end) {
                         state_.set_end(end);
                         tell_at_work(worker_, decode_phase(state_.phase()), end.reason);
                         // A worker to which nothing goes by TCP learns it as well.
                         datagrams_->send(end_of_run_.end_frame());
                       }}) {
  for (std::size_t w = 0; w < peers_.size(); ++w) {
    peers_[w].connection = std::move(team.connections[w]);
    if (static_cast<int64_t>(w) == worker_) continue;
    peers_[w].is_neighbour = are_all_neighbours_;
    asio::co_spawn(context_, listen(static_cast<int64_t>(w)), rethrow);
  }
  for (const int64_t w : Dissemination(static_cast<int64_t>(members_.size()), worker_).partners()) {
    peers_[static_cast<std::size_t>(w)].is_neighbour = true;
  }
  datagrams_->start(members_, worker_, team.datagram_key, [this](int64_t from, const Frame& frame) {
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    peer.has_been_heard = true;
    // One that is gone may have said before how the run ended, and no more.
    if (!peer.is_over || frame.kind == Kind::kEnd) receive(from, frame);
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

void Control::notice(const std::string& reason, int64_t failed, Noticed how) {
  asio::post(context_, [this, reason, failed, how] { end_of_run_.notice(failure_of(failed, how, reason)); });
}

/// A failure as a reason to end the run, with what is known of the worker.
std::string Control::failure_of(int64_t worker, Noticed how, std::string text) const {
  if (worker < 0) return encode(RunFailure{.text = std::move(text), .noticed = how});
  const Member& member = members_[static_cast<std::size_t>(worker)];
  RunFailure failure{
      .text = std::move(text), .worker = worker, .process = member.process, .host = member.host, .noticed = how};
  std::string phase;
  if (worker == worker_) {
    failure.phase = decode_phase(state_.phase());
    phase = describe(*failure.phase);
  } else if (const Peer& peer = peers_[static_cast<std::size_t>(worker)]; peer.is_neighbour || peer.is_known) {
    failure.phase = phases_.phase(worker);
    phase = phases_.describe(worker);
  }
  // Who is absent has been told of with what it does.
  if (failure.phase && how != Noticed::kAbsent) failure.text += fmt::format("; worker {} was {}", worker, phase);
  return encode(failure);
}

void Control::ask(std::vector<int64_t> workers) {
  asio::post(context_, [this, workers = std::move(workers)] {
    for (Peer& peer : peers_) peer.is_awaited = false;
    for (const int64_t w : workers) peers_[static_cast<std::size_t>(w)].is_awaited = true;
  });
}

void Control::notice_broken(int64_t worker, const std::string& how) {
  // Where the process has ended, the thread learns it in this tick, and says so.
  asio::post(context_, [this, worker, how] {
    const auto timer = std::make_shared<asio::steady_timer>(context_, 2 * tick_);
    timer->async_wait([this, timer, worker, how](std::error_code) {
      const Peer& peer = peers_[static_cast<std::size_t>(worker)];
      if (peer.is_over || peer.is_probed) return;
      end_of_run_.notice(
          failure_of(worker, Noticed::kConnection,
                     fmt::format("the connection for data between worker {} and {} broke ({}); both are alive", worker_,
                                 members_[static_cast<std::size_t>(worker)].name(), how)));
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
  const Frame left{
      .kind = Kind::kLeft,
      .calls = state_.freeze(),
      .text = known.empty() ? failure_of(worker_, at_exit ? Noticed::kExited : Noticed::kLeft, mine) : known};
  for (std::size_t w = 0; w < peers_.size(); ++w) {
    if (!peers_[w].connection) continue;
    tell(static_cast<int64_t>(w), left);
    if (!at_exit) peers_[w].connection->close();
  }
}

void Control::tell(int64_t worker, const Frame& frame) {
  Connection& connection = *peers_[static_cast<std::size_t>(worker)].connection;
  if (connection.is_open()) {
    connection.send(frame);
  } else {
    datagrams_->send(frame, {&worker, 1});
  }
}

asio::awaitable<void> Control::listen(int64_t worker) {
  Peer& peer = peers_[static_cast<std::size_t>(worker)];
  const std::shared_ptr<Connection> connection = peer.connection;
  const std::string name = members_[static_cast<std::size_t>(worker)].name();
  std::string how;
  try {
    while (true) {
      const Frame frame = co_await connection->read();
      peer.has_been_heard = true;
      receive(worker, frame);
    }
  } catch (const ConnectionError& error) {
    how = error.what();
  }
  if (peer.is_over || has_left_) co_return;
  // That of a process that has ended breaks; so does one that the network resets, between two that live.
  peer.is_probed = true;
  bool is_asked_again = false;
  while (!end_of_run_.has_ended()) {
    const Answer answer = co_await probe(worker);
    if (peer.is_over || has_left_) co_return;
    if (answer == Answer::kGone) {
      const std::string& here = members_[static_cast<std::size_t>(worker_)].host_id;
      const std::string why = members_[static_cast<std::size_t>(worker)].host_id == here ? oom_watch_.text() : "";
      const std::string reason =
          failure_of(worker, Noticed::kGone, fmt::format("{} is gone: it was killed or crashed{}", name, why));
      if (!peer.is_neighbour) {  // its neighbours know what it did, and say so first
        peer.is_over = true;
        end_of_run_.set_gone(worker, Gone::kDead, peer.calls);
        asio::steady_timer pause(context_, 2 * tick_);
        co_await pause.async_wait(use_awaitable);
        if (has_left_) co_return;
      }
      co_return lose(worker, Gone::kDead, peer.calls, reason);
    }
    // This worker may have been too slow itself, and asks once more before it says so.
    if (answer == Answer::kHere || is_asked_again) {
      end_of_run_.notice(
          failure_of(worker, Noticed::kConnection,
                     fmt::format("the connection between worker {} and {} broke ({}); {}", worker_, name, how,
                                 answer == Answer::kHere ? "both are alive" : "that worker gives no answer")));
    }
    if (answer == Answer::kHere) co_return;
    is_asked_again = true;
    // Where the network cannot be reached at all, the answer comes at once.
    asio::steady_timer pause(context_, tick_);
    co_await pause.async_wait(use_awaitable);
  }
}

/// A process that ends may still accept connections for a moment, and drops them then.
asio::awaitable<Control::Answer> Control::probe(int64_t worker) {
  using Clock = asio::steady_timer::clock_type;
  const Member& member = members_[static_cast<std::size_t>(worker)];
  const auto end = Clock::now() + kLongestQuestion;
  asio::steady_timer pause(context_);
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    if (left <= milliseconds(0)) co_return Answer::kNone;
    try {
      const auto connection = co_await Connection::to(member.address, member.port, keys_, left);
      connection->close_after(left);
      connection->send({.kind = Kind::kProbe});
      const Frame answer = co_await connection->read();
      connection->close();
      // Another process may listen there by now.
      co_return answer.text == member.name() ? Answer::kHere : Answer::kGone;
    } catch (const ConnectionError& error) {
      if (error.kind == ConnectionError::Kind::kRefused) co_return Answer::kGone;
      if (error.kind == ConnectionError::Kind::kNoAnswer) co_return Answer::kNone;
    }
    pause.expires_after(kPauseBeforeNextQuestion);
    co_await pause.async_wait(use_awaitable);
  }
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
  if (frame.kind == Kind::kHeartbeat) {
    peers_[static_cast<std::size_t>(worker)].calls = frame.calls;
    peers_[static_cast<std::size_t>(worker)].is_known = true;
    phases_.see(worker, frame.number);
    calls_.see(worker, frame.calls.begun, frame.about);
  }
  if (frame.kind == Kind::kAsk) {
    tell(worker, heartbeat());
    datagrams_->send(heartbeat(), {&worker, 1});
  }
  if (frame.kind == Kind::kSilent) suspect(frame.about, frame.calls);
  end_of_run_.receive(worker, frame);
}

Frame Control::heartbeat() const {
  return {.kind = Kind::kHeartbeat, .number = state_.phase(), .calls = state_.calls(), .about = state_.waits_for()};
}

/// Decides from whom something must be heard now.
void Control::watch() {
  const bool must_end = !end_of_run_.reason().empty() && !end_of_run_.has_ended();
  for (std::size_t w = 0; w < peers_.size(); ++w) {
    Peer& peer = peers_[w];
    const bool was_watched = peer.is_watched;
    peer.is_watched =
        peer.connection && !peer.is_over && (peer.is_neighbour || peer.is_awaited || peer.is_suspect || must_end);
    if (!peer.is_watched) peer.is_known = false;
    if (!peer.is_watched || was_watched || peer.is_suspect) continue;
    peer.has_been_heard = false;
    peer.silent_ticks = -1;  // this tick does not count
  }
}

asio::awaitable<void> Control::beat() {
  asio::steady_timer timer(context_);
  auto next = asio::steady_timer::clock_type::now();
  while (!has_left_) {
    if (has_no_memory_.exchange(false)) end_of_run_.notice(failure_text_);
    watch();
    const Frame beat = heartbeat();
    const Frame ask{.kind = Kind::kAsk};
    for (const bool asks : {false, true}) {
      told_.clear();
      for (std::size_t w = 0; w < peers_.size(); ++w) {
        const Peer& peer = peers_[w];
        if (!peer.is_watched || peer.is_neighbour == asks) continue;
        peer.connection->send(asks ? ask : beat);
        // A datagram may have been lost, and what was on its way when a connection broke.
        if (!peer.connection->is_open()) end_of_run_.ask_again(static_cast<int64_t>(w));
        told_.push_back(static_cast<int64_t>(w));
      }
      if (!end_of_run_.has_ended()) datagrams_->send(asks ? ask : beat, told_);
    }
    if (end_of_run_.has_ended()) datagrams_->send(end_of_run_.end_frame());
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
    if (!peer.is_watched || peer.is_over) continue;
    if (peer.has_been_heard) peer.is_suspect = false;
    peer.silent_ticks = std::exchange(peer.has_been_heard, false) ? 0 : peer.silent_ticks + 1;
    if (peer.silent_ticks < most_silent_ticks()) continue;
    peer.silent_ticks = 0;
    const Member& self = members_[static_cast<std::size_t>(worker_)];
    const std::string stop = members_[w].host_id == self.host_id ? stop_of(members_[w].process) : "";
    const auto worker = static_cast<int64_t>(w);
    lose(worker, Gone::kUnreachable, peer.calls,
         failure_of(worker, Noticed::kSilent,
                    fmt::format("{} is frozen or cut off: worker {} has heard nothing from it for {:.1f} s{}{}",
                                members_[w].name(), worker_, std::chrono::duration<double>(lost_).count(),
                                stop.empty() ? "" : "; ", stop)));
    if (are_all_neighbours_ || !peer.is_neighbour) continue;
    const Frame silent{.kind = Kind::kSilent, .calls = peer.calls, .about = worker};
    for (std::size_t other = 0; other < peers_.size(); ++other) {
      if (peers_[other].connection && !peers_[other].is_over && other != w) peers_[other].connection->send(silent);
    }
    datagrams_->send(silent);
  }
}

/// Another worker has heard nothing from this one for too long. A neighbour of it counts for itself.
void Control::suspect(int64_t worker, const Calls& calls) {
  if (worker < 0 || worker >= static_cast<int64_t>(peers_.size())) return;
  Peer& peer = peers_[static_cast<std::size_t>(worker)];
  if (!peer.connection || peer.is_over || peer.is_neighbour) return;
  peer.calls.taken = std::max(peer.calls.taken, calls.taken);
  peer.calls.returned = std::max(peer.calls.returned, calls.returned);
  peer.is_suspect = true;
  peer.has_been_heard = false;
  peer.silent_ticks = std::max(peer.silent_ticks, most_silent_ticks() - std::max(most_silent_ticks() / 5, 1) - 1);
}

}  // namespace lockstep::internal::comm
