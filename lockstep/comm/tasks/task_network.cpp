// The order of events on a new connection: who connects makes the handshake and says its TaskHello. The other side
// answers, and then says nothing before a message has come: until then the first side reads frames, and no messages.
#include "lockstep/comm/tasks/task_network.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = TaskEvent::Kind;

/// How long one attempt to connect may take.
constexpr milliseconds kLongestAttempt = seconds(5);

milliseconds left_until(TaskNetwork::Clock::time_point end) {
  return std::max(std::chrono::ceil<milliseconds>(end - TaskNetwork::Clock::now()), milliseconds(1));
}

/// Jobs of tasks have keys of their own: nobody takes them for workers that join a World.
std::string key_name(const std::string& job) { return job + " tasks"; }

}  // namespace

TaskNetwork::TaskNetwork(TaskJob job) : job_(std::move(job)), keys_(job_.secret, key_name(job_.id)) {
  if (job_.self.job != TaskId::Job::kWorker) {
    listener_ = std::make_unique<Listener>(context_, job_.address, job_.port, keys_, job_.self.name());
    port_ = listener_->port();
    listener_->start([this](std::shared_ptr<Connection> connection, Frame frame) { welcome(connection, frame); });
  }
  asio::co_spawn(context_, beat(), rethrow);
  thread_ = start_service_thread(job_.self.task, "mail", [this] { run(); });
}

TaskNetwork::~TaskNetwork() {
  asio::post(context_, [this] {
    for (auto& [number, one] : links_) one.link->close();
    context_.stop();
  });
  thread_.join();
}

void TaskNetwork::run() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception&) {
      // No memory, say, for what has just come: that link is lost, and others go on.
    }
  }
}

void TaskNetwork::tell(TaskEvent event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }
  came_.notify_one();
}

std::optional<TaskEvent> TaskNetwork::next(Clock::time_point end) {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait_until(lock, end, [&] { return is_stopped_ || !events_.empty(); });
  if (is_stopped_ || events_.empty()) return std::nullopt;
  TaskEvent first = std::move(events_.front());
  events_.pop_front();
  return first;
}

void TaskNetwork::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  came_.notify_all();
}

void TaskNetwork::set_run(uint64_t run) {
  asio::post(context_, [this, run] { run_ = run; });
}

void TaskNetwork::connect(TaskId to, std::vector<std::string> addresses, uint16_t port, Clock::time_point end) {
  asio::post(context_, [this, to, addresses = std::move(addresses), port, end]() mutable {
    asio::co_spawn(context_, find(to, std::move(addresses), port, end), rethrow);
  });
}

void TaskNetwork::send(uint64_t link, std::string message) {
  if (message.size() > kLongestTaskMessage) {
    throw UsageError("LS-COUNT", fmt::format("{} was to send a message of {} bytes", job_.self.name(), message.size()),
                     "send less at a time");
  }
  asio::post(context_, [this, link, message = std::move(message)]() mutable {
    const auto found = links_.find(link);
    if (found == links_.end()) return;
    if (!passes(found->second, message, true)) return found->second.link->close();
    found->second.link->send(std::move(message));
  });
}

bool TaskNetwork::passes(const Link& link, std::string_view message, bool is_sent) const {
  return !watch || watch({.self = job_.self, .peer = link.peer.from, .is_sent = is_sent, .bytes = message});
}

void TaskNetwork::close(uint64_t link) {
  asio::post(context_, [this, link] {
    if (const auto found = links_.find(link); found != links_.end()) found->second.link->close_when_sent();
  });
}

TaskHello TaskNetwork::hello_to(TaskId to) const {
  return {.from = job_.self,
          .to = to,
          .workers = job_.workers,
          .servers = job_.servers,
          .plaintext = job_.plaintext,
          .run = run_,
          .process = getpid(),
          .host = host_name(),
          .address = job_.address,
          .port = port_};
}

// Who is looked for.

asio::awaitable<void> TaskNetwork::find(TaskId to, std::vector<std::string> addresses, uint16_t port,
                                        Clock::time_point end) {
  milliseconds pause{20};
  std::string problem = "its address is not known";
  while (!addresses.empty()) {
    for (const std::string& address : addresses) {
      Frame refusal;
      try {
        refusal = co_await attach(to, address, port, std::min(end, Clock::now() + kLongestAttempt));
        if (refusal.text.empty()) co_return;
      } catch (const ConnectionError& error) {
        problem = error.what();
        const bool may_come = error.kind != ConnectionError::Kind::kWrongSecret &&
                              error.kind != ConnectionError::Kind::kNotTls &&
                              error.kind != ConnectionError::Kind::kMalformed;
        if (!may_come) refusal.text = problem;
        if (error.kind == ConnectionError::Kind::kWrongSecret) refusal.number = kDiffers;
      }
      if (refusal.text.empty()) continue;
      tell({.kind = Kind::kUnreachable,
            .refusal = refusal.number,
            .peer = {.from = to, .address = address, .port = port},
            .text = refusal.text});
      co_return;
    }
    if (Clock::now() >= end) break;
    asio::steady_timer timer(context_, std::min(end, Clock::now() + pause));
    co_await timer.async_wait(use_awaitable);
    pause = std::min(2 * pause, milliseconds(500));
  }
  tell({.kind = Kind::kUnreachable,
        .peer = {.from = to, .address = addresses.empty() ? "" : addresses.front(), .port = port},
        .text = problem});
}

/// With which frame the other side refused; without a text where this task is connected with it.
asio::awaitable<Frame> TaskNetwork::attach(TaskId to, std::string address, uint16_t port, Clock::time_point end) {
  const auto connection = co_await Connection::to(address, port, keys_, left_until(end));
  connection->send({.kind = Frame::Kind::kJoin, .text = encode(hello_to(to))});
  connection->close_after(left_until(end));
  Frame answer = co_await connection->read();
  connection->cancel_close();
  if (answer.kind == Frame::Kind::kRefused) {
    connection->close();
    if (answer.text.empty()) answer.text = "it refused this task";
    co_return answer;
  }
  const std::optional<TaskHello> peer =
      answer.kind == Frame::Kind::kAttached ? decode_task_hello(answer.text) : std::nullopt;
  if (!peer || peer->from != to) {
    connection->close();
    throw ConnectionError(ConnectionError::Kind::kMalformed, "another task is there");
  }
  add(connection, *peer, true);
  co_return Frame();
}

// Who comes.

void TaskNetwork::welcome(const std::shared_ptr<Connection>& connection, const Frame& frame) {
  std::optional<TaskHello> hello =
      frame.kind == Frame::Kind::kJoin ? decode_task_hello(frame.text) : std::optional<TaskHello>();
  if (!hello) return listener_->refuse(*connection);
  // Before a server knows its run, workers of it may come already: they try again.
  if (job_.self.job == TaskId::Job::kServer && run_ == 0) return connection->close();
  const std::string objection = objection_to(*hello);
  const std::string taken = objection.empty() ? taken_by(*hello) : "";
  if (!objection.empty() || !taken.empty()) {
    connection->send(
        {.kind = Frame::Kind::kRefused, .number = objection.empty() ? kTaken : kDiffers, .text = objection + taken});
    connection->close_after(seconds(1));
    return;
  }
  asio::co_spawn(context_, accept(connection, std::move(*hello)), rethrow);
}

std::string TaskNetwork::objection_to(const TaskHello& hello) const {
  const auto differs = [&](const char* what, const auto& theirs, const auto& mine) {
    return fmt::format("{} has {} {}, and {} has {}", hello.name(), what, theirs, job_.self.name(), mine);
  };
  if (hello.to != job_.self)
    return fmt::format("{} looked for {} where {} is", hello.name(), hello.to.name(), job_.self.name());
  if (hello.workers != job_.workers) return differs("a number of workers of", hello.workers, job_.workers);
  if (hello.servers != job_.servers) return differs("a number of servers of", hello.servers, job_.servers);
  if (hello.plaintext != job_.plaintext) {
    return differs("encryption", hello.plaintext ? "off" : "on", job_.plaintext ? "off" : "on");
  }
  const bool is_worker = hello.from.job == TaskId::Job::kWorker;
  const bool fits = job_.self.job == TaskId::Job::kChief ? hello.from.job != TaskId::Job::kChief : is_worker;
  if (!fits || hello.from.task >= (is_worker ? job_.workers : job_.servers)) {
    return fmt::format("{} is no task that {} waits for", hello.name(), job_.self.name());
  }
  if (job_.self.job == TaskId::Job::kServer && hello.run != run_) {
    return fmt::format("{} belongs to another run than {}", hello.name(), job_.self.name());
  }
  return {};
}

std::string TaskNetwork::taken_by(const TaskHello& hello) const {
  if (hello.from.job == TaskId::Job::kWorker) return {};  // its older link is closed
  for (const auto& [number, one] : links_) {
    if (one.peer.from == hello.from) return fmt::format("{} has joined already", one.peer.name());
  }
  return {};
}

asio::awaitable<void> TaskNetwork::accept(std::shared_ptr<Connection> connection, TaskHello hello) {
  connection->send({.kind = Frame::Kind::kAttached, .text = encode(hello_to(hello.from))});
  try {
    connection->close_after(kLongestAttempt);
    co_await connection->flush();
  } catch (const ConnectionError&) {
    co_return;  // the other side tries again
  }
  add(connection, hello, false);
}

void TaskNetwork::add(const std::shared_ptr<Connection>& connection, const TaskHello& peer, bool has_spoken) {
  if (!connection->is_open()) return;
  for (auto& [other, one] : links_) {
    if (one.peer.from == peer.from) one.link->close();  // an older one: its end is told by listen()
  }
  const uint64_t number = next_link_++;
  const auto link = std::make_shared<TaskLink>(context_, connection->take(), job_.plaintext);
  links_.emplace(number, Link{.link = link, .peer = peer, .has_spoken = has_spoken});
  if (has_spoken) link->say_alive();
  tell({.kind = Kind::kConnected, .link = number, .peer = peer});
  asio::co_spawn(context_, listen(number), rethrow);
}

// Links.

asio::awaitable<void> TaskNetwork::listen(uint64_t number) {
  const std::shared_ptr<TaskLink> link = links_.at(number).link;
  std::string how;
  try {
    while (true) {
      std::string message = co_await link->read();
      const auto found = links_.find(number);
      if (found == links_.end()) co_return;  // it was lost, and told
      found->second.has_spoken = true;
      if (!passes(found->second, message, false)) {
        how = "it was closed here";
        break;
      }
      tell({.kind = Kind::kReceived, .link = number, .peer = found->second.peer, .text = std::move(message)});
    }
  } catch (const ConnectionError& error) {
    how = error.what();
  } catch (const std::bad_alloc&) {
    how = "there was no memory for a message of it";
  }
  lose(number, how);
}

void TaskNetwork::lose(uint64_t number, const std::string& why) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  TaskEvent event{.kind = Kind::kLost, .link = number, .peer = found->second.peer, .text = why};
  found->second.link->close();
  links_.erase(found);
  tell(std::move(event));
}

/// Each tick says that this task is alive, and counts for how long others have not said it, in this task's own ticks,
/// so that a machine or a process that stood still for a while blames nobody.
asio::awaitable<void> TaskNetwork::beat() {
  const milliseconds tick = heartbeat_interval(job_.lost);
  const int most = static_cast<int>(job_.lost / tick);
  asio::steady_timer timer(context_);
  while (true) {
    timer.expires_after(tick);
    co_await timer.async_wait(use_awaitable);
    std::vector<uint64_t> silent;
    for (auto& [number, one] : links_) {
      if (one.has_spoken) one.link->say_alive();
      one.silent_ticks = one.link->was_heard() ? 0 : one.silent_ticks + 1;
      if (one.silent_ticks >= most) silent.push_back(number);
    }
    for (const uint64_t number : silent) {
      lose(number, fmt::format("nothing was heard from it for {:.1f} s: it is frozen or cut off",
                               std::chrono::duration<double>(job_.lost).count()));
    }
  }
}

}  // namespace lockstep::internal::comm
