// The other workers' part of a rendezvous: each goes to worker 0, and then connects to all workers before it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/comm/network/join/refusal.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = Event::Clock;
using Kind = Frame::Kind;
using Purpose = Attachment::Purpose;

/// Whether each worker stands in its place.
bool is_list_of(const Members& members, int64_t workers) {
  if (static_cast<int64_t>(members.all.size()) != workers || members.session.empty()) return false;
  for (int64_t w = 0; w < workers; ++w) {
    if (members.all[static_cast<std::size_t>(w)].worker != w) return false;
  }
  return true;
}

}  // namespace

/// Worker 0's name may lead elsewhere by now. Does not wait for the answer: it counts when it is there.
void NetworkRendezvous::look_for_chief() {
  if (job_.chief_name.empty()) return;
  if (chief_look_up_ && chief_look_up_->is_done()) {
    HostNumbers found = chief_look_up_->found();
    if (!found.numbers.empty()) chief_ = std::move(found.numbers);  // otherwise what was known stays
    chief_look_up_.reset();
  }
  if (chief_look_up_ || Clock::now() < next_look_up_) return;
  next_look_up_ = Clock::now() + job_.look_up_every;
  chief_look_up_.emplace(job_.chief_name, job_.resolver);
}

asio::awaitable<std::shared_ptr<Connection>> NetworkRendezvous::reach_chief(Progress& progress) {
  std::string problem = "not tried yet";
  milliseconds pause{50};
  for (std::size_t attempt = 0; !progress.is_over(); ++attempt) {
    look_for_chief();
    const std::string address = chief_[attempt % chief_.size()];
    const auto left = std::chrono::ceil<milliseconds>(progress.end() - Clock::now());
    std::optional<ConnectionError::Kind> failed;
    try {
      co_return co_await Connection::to(address, job_.chief_port, tls_, std::min<milliseconds>(left, seconds(5)));
    } catch (const ConnectionError& error) {
      failed = error.kind;
      problem = fmt::format("{}, port {}: {}", address, job_.chief_port, error.what());
    }
    if (failed == ConnectionError::Kind::kWrongSecret) {
      throw_refused(kDiffers,
                    fmt::format("worker {} has found a program that does not know this job's secret and id at {}, "
                                "port {}, where worker 0 should be",
                                job_.worker_index, address, job_.chief_port));
    }
    progress.tell([&] { return fmt::format("worker {} waits for worker 0 ({})", job_.worker_index, problem); });
    co_await changed_.wait(std::min<Clock::time_point>(Clock::now() + pause, progress.next()));
    pause = std::min(2 * pause, milliseconds(1000));
  }
  throw chief_missing(fmt::format("worker {} of {} has waited {} s for worker 0 ({})", job_.worker_index,
                                  job_.num_workers, progress.elapsed(), problem),
                      job_.worker_index, job_.num_workers, problem);
}

asio::awaitable<void> NetworkRendezvous::go_to_chief(Progress& progress) {
  bool has_joined = false;
  while (!has_joined) {
    const std::shared_ptr<Connection> connection = co_await reach_chief(progress);
    has_joined = co_await join_chief(connection, progress);
  }
  if (relays()) co_await pass_members_on();
}

/// Whether all have come; not where worker 0 has gone before.
asio::awaitable<bool> NetworkRendezvous::join_chief(std::shared_ptr<Connection> connection, Progress& progress) {
  members_ = {};  // of an earlier worker 0, which has gone
  announced_.clear();
  connection->send({.kind = Kind::kJoin, .text = encode(mine_)});
  connection->close_after(std::chrono::ceil<milliseconds>(progress.end() - Clock::now()) + kGrace);
  const auto waits = std::make_shared<bool>(true);
  const auto tell = [](NetworkRendezvous* self, Progress& told, std::shared_ptr<bool> still) -> asio::awaitable<void> {
    while (*still) {
      told.tell([&] {
        return fmt::format("worker {} has found worker 0 and waits for the others", self->job_.worker_index);
      });
      co_await self->changed_.wait(Clock::now() + milliseconds(500));
    }
  };
  asio::co_spawn(context_, tell(this, progress, waits), rethrow);
  std::optional<Frame> answer;
  std::string problem;
  try {
    answer = co_await connection->read();
  } catch (const ConnectionError& error) {
    problem = error.what();
  }
  *waits = false;
  changed_.notify();
  // The coroutine beside this one ends before `progress` does.
  co_await asio::post(context_, use_awaitable);
  connection->cancel_close();
  if (!answer) {
    if (progress.is_over()) {
      const std::string seen = fmt::format("{}, {}", connection->remote(), problem);
      throw chief_missing(fmt::format("worker {} has found worker 0 at {}, which has not brought all workers together "
                                      "in {} s: {}",
                                      job_.worker_index, connection->remote(), progress.elapsed(), problem),
                          job_.worker_index, job_.num_workers, seen);
    }
    co_await changed_.wait(Clock::now() + milliseconds(100));
    co_return false;
  }
  if (answer->kind == Kind::kRefused && answer->number == kInRun) {
    // Of a job that is started again, one part may come before another part has seen that the earlier run is over.
    co_await changed_.wait(std::min<Clock::time_point>(Clock::now() + milliseconds(500), progress.next()));
    progress.tell([&] { return fmt::format("worker {} waits for the next run: {}", job_.worker_index, answer->text); });
    if (!progress.is_over()) co_return false;
    throw chief_missing(fmt::format("worker {} has waited {} s for the next run: {}", job_.worker_index,
                                    progress.elapsed(), answer->text),
                        job_.worker_index, job_.num_workers, "it is in an earlier run of this job");
  }
  if (answer->kind == Kind::kRefused && answer->number == kGivenUp) {
    throw decode_missing(answer->text, job_.num_workers);
  }
  if (answer->kind == Kind::kRefused) throw_refused(answer->number, answer->text);
  std::optional<Members> members = answer->kind == Kind::kMembers ? decode_members(answer->text) : std::nullopt;
  const bool is_sent_by_another = answer->kind == Kind::kAllHere && !answer->text.empty();
  if (!is_sent_by_another && (!members || !is_list_of(*members, job_.num_workers))) {
    throw_refused(kDiffers, fmt::format("worker 0 at {} sent an invalid message", connection->remote()));
  }
  control_[0] = connection;
  asio::co_spawn(context_, listen_to_chief(), rethrow);
  if (is_sent_by_another) {
    announced_ = answer->text;
    changed_.notify();
    co_await wait_for_members(answer->about);
  } else {
    members_ = std::move(*members);
    set_zone(members_.all, zone_);
    changed_.notify();
  }
  co_return true;
}

/// Another worker passes the members on.
asio::awaitable<void> NetworkRendezvous::take_members(std::shared_ptr<Connection> connection, Frame frame) {
  std::optional<Members> members = decode_members(frame.text);
  // It may come before worker 0 has said that it will, and late, of an earlier worker 0.
  const Clock::time_point end = Clock::now() + kLongestConnect;
  while (announced_.empty() && Clock::now() < end) co_await changed_.wait(end);
  const bool is_ours = members && members->session == announced_ && is_list_of(*members, job_.num_workers) &&
                       members->all[static_cast<std::size_t>(job_.worker_index)] == mine_.member;
  if (!is_ours) {
    listener_.refuse(*connection);
    co_return;
  }
  if (members_.all.empty()) {
    members_ = std::move(*members);
    set_zone(members_.all, zone_);
  }
  changed_.notify();
  connection->send({.kind = Kind::kAttached, .number = static_cast<uint64_t>(job_.worker_index)});
  connection->close_after(seconds(1));
}

asio::awaitable<void> NetworkRendezvous::wait_for_members(int64_t from) {
  const Clock::time_point end = Clock::now() + job_.longest_connect_all;
  while (members_.all.empty() && failure_.empty() && Clock::now() < end) co_await changed_.wait(end);
  if (!members_.all.empty()) co_return;
  if (failure_.empty()) {
    failure_ = fmt::format("{} has not got the list of all workers from worker {} in {} s", mine_.member.name(), from,
                           std::chrono::duration<double>(job_.longest_connect_all).count());
    control_[0]->send({.kind = Kind::kFailed, .text = failure_});
    try {
      co_await control_[0]->flush();
    } catch (const ConnectionError&) {  // then worker 0 misses this one
    }
  }
  throw_refused(kUnreachable, failure_);
}

/// Tells the members to those who hear them from this worker. Worker 0 learns where that failed when all get connected.
asio::awaitable<void> NetworkRendezvous::pass_members_on() {
  const std::string text = encode(members_);
  for (const int64_t worker : children_in_tree(job_.num_workers, job_.worker_index)) {
    const Member& member = members_.all[static_cast<std::size_t>(worker)];
    const Clock::time_point end = Clock::now() + kLongestConnect;
    std::string problem;
    while (true) {
      try {
        const auto left = std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), milliseconds(1));
        const auto connection = co_await Connection::to(member.address, member.port, tls_, left);
        connection->send({.kind = Kind::kMembers, .text = text});
        connection->close_after(left);
        const Frame answer = co_await connection->read();
        connection->close();
        problem = answer.kind == Kind::kAttached ? "" : "another worker is there";
        break;
      } catch (const ConnectionError& error) {
        problem = error.what();
        if (Clock::now() >= end || !failure_.empty()) break;
      }
      co_await changed_.wait(Clock::now() + milliseconds(50));  // it is busy
    }
    if (!problem.empty() && not_passed_on_.empty()) not_passed_on_ = unreachable_text(worker, problem);
  }
}

/// Waits for worker 0's last word about the connections.
asio::awaitable<void> NetworkRendezvous::listen_to_chief() {
  try {
    const Frame frame = co_await control_[0]->read();
    if (frame.kind == Kind::kGo) {
      may_go_ = true;
    } else {
      failure_ = frame.kind == Kind::kRefused ? frame.text : "worker 0 sent an invalid message";
    }
  } catch (const ConnectionError& error) {
    failure_ = fmt::format("the connection to {} was lost while the workers were being connected: {}", chief_name(),
                           error.what());
  }
  changed_.notify();
}

std::string NetworkRendezvous::chief_name() const {
  return members_.all.empty() ? "worker 0 at " + control_[0]->remote() : members_.all[0].name();
}

std::string NetworkRendezvous::unreachable_text(int64_t worker, const std::string& problem) const {
  const Member& other = members_.all[static_cast<std::size_t>(worker)];
  return fmt::format("{} cannot reach {} at {}, port {}: {}", mine_.member.name(), other.name(), other.address,
                     other.port, problem);
}

asio::awaitable<void> NetworkRendezvous::attach(int64_t worker, Purpose purpose, Clock::time_point end) {
  const Member& member = members_.all[static_cast<std::size_t>(worker)];
  const auto longest = std::min<milliseconds>(kLongestConnect, std::chrono::ceil<milliseconds>(end - Clock::now()));
  const auto connection = co_await Connection::to(member.address, member.port, tls_, longest);
  const Attachment attachment{
      .worker = job_.worker_index, .to = worker, .purpose = purpose, .session = members_.session};
  connection->send({.kind = Kind::kAttach, .text = encode(attachment)});
  connection->close_after(longest);
  const Frame answer = co_await connection->read();
  connection->cancel_close();
  if (answer.kind != Kind::kAttached || answer.number != static_cast<uint64_t>(worker)) {
    throw ConnectionError(ConnectionError::Kind::kMalformed, "another worker is there");
  }
  if (purpose == Purpose::kControl) {
    control_[static_cast<std::size_t>(worker)] = connection;
  } else {
    add_data(worker, connection);
  }
}

/// Attaches, again where the other side was too busy or the connection broke. Why it could not; empty where it could.
asio::awaitable<std::string> NetworkRendezvous::attach_in_time(int64_t worker, Purpose purpose, Clock::time_point end) {
  milliseconds pause{50};
  std::string problem;
  while (failure_.empty() && Clock::now() < end) {
    bool may_pass = false;
    try {
      co_await attach(worker, purpose, end);
      co_return std::string();
    } catch (const ConnectionError& error) {
      problem = error.what();
      may_pass = error.kind == ConnectionError::Kind::kClosed || error.kind == ConnectionError::Kind::kBroken;
    }
    if (!may_pass) break;
    co_await changed_.wait(Clock::now() + pause);
    pause = std::min(2 * pause, milliseconds(500));
  }
  co_return unreachable_text(worker, problem);
}

/// With whom this worker is not connected; empty where it is with all.
std::string NetworkRendezvous::lacking_text() const {
  std::vector<int64_t> lacking;
  for (std::size_t w = 0; w < control_.size(); ++w) {
    if (static_cast<int64_t>(w) != job_.worker_index && (!control_[w] || !data_[w])) {
      lacking.push_back(static_cast<int64_t>(w));
    }
  }
  if (lacking.empty()) return {};
  return fmt::format("{} has no connection with worker{} {} after {} s", mine_.member.name(),
                     lacking.size() == 1 ? "" : "s", fmt::join(lacking, ", "),
                     std::chrono::duration<double>(job_.longest_connect_all).count());
}

asio::awaitable<void> NetworkRendezvous::attach_to_all() {
  const Clock::time_point due = Clock::now() + job_.longest_connect_all;
  const Clock::time_point end = due + 2 * kGrace;
  std::string mine = not_passed_on_;  // why this worker is not connected with all
  for (int64_t w = 0; w < job_.worker_index && mine.empty(); ++w) {
    if (w > 0) mine = co_await attach_in_time(w, Purpose::kControl, due);
    if (mine.empty()) mine = co_await attach_in_time(w, Purpose::kData, due);
  }
  bool has_told = false;
  while (failure_.empty() && !may_go_ && Clock::now() < end) {
    const bool is_due = Clock::now() >= due;
    if (mine.empty() && is_due) mine = lacking_text();
    if (!has_told && (!mine.empty() || is_connected_with_all())) {
      has_told = true;
      control_[0]->send(mine.empty() ? Frame{.kind = Kind::kReady} : Frame{.kind = Kind::kFailed, .text = mine});
    }
    co_await changed_.wait(is_due ? end : due);
  }
  if (failure_.empty() && !may_go_) {
    failure_ = fmt::format("{} has not said whether all workers are connected{}{}", members_.all[0].name(),
                           mine.empty() ? "" : "; ", mine);
  }
  if (!failure_.empty()) throw_refused(kUnreachable, failure_);
}

}  // namespace lockstep::internal::comm
