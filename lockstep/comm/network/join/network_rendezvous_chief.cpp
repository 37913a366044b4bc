// Worker 0's part of a rendezvous: it gathers the others, and sees that all are connected.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/cluster/address.h"
#include "lockstep/comm/join/authentication.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/comm/network/join/refusal.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = Event::Clock;
using Kind = Frame::Kind;

std::string fresh_session() {
  std::string digits;
  for (const unsigned char byte : fresh_nonce()) digits += fmt::format("{:02x}", byte);
  return digits;
}

std::string workers_text(const std::vector<std::string>& workers) {
  return fmt::format("worker{} {}", workers.size() == 1 ? "" : "s", fmt::join(workers, ", "));
}

}  // namespace

int64_t NetworkRendezvous::num_joined() const {
  return std::count_if(joined_.begin(), joined_.end(), [](const auto& one) { return one.has_value(); });
}

std::string NetworkRendezvous::who_is_here() const {
  std::vector<std::string> missing;
  for (std::size_t w = 1; w < joined_.size(); ++w) {
    if (joined_[w]) continue;
    missing.push_back(seen_[w].empty() ? fmt::format("{}", w) : fmt::format("{} ({})", w, seen_[w]));
  }
  return fmt::format("{} of {} workers are here; missing: {}", num_joined() + 1, job_.num_workers,
                     workers_text(missing));
}

std::vector<SeenWorker> NetworkRendezvous::seen_workers() const {
  std::vector<SeenWorker> seen(seen_.size(), {.state = SeenWorker::State::kHere});
  for (std::size_t w = 1; w < seen.size(); ++w) {
    if (!joined_[w]) seen[w] = {.state = SeenWorker::State::kMissing, .what = seen_[w]};
  }
  return seen;
}

void NetworkRendezvous::refuse_all(uint64_t kind, const std::string& text) {
  for (const auto& joined : joined_) {
    if (joined) joined->connection->send({.kind = Kind::kRefused, .number = kind, .text = text});
  }
}

asio::awaitable<void> NetworkRendezvous::gather(Progress& progress) {
  Clock::time_point next_probe = Clock::now();
  while (num_joined() + 1 < job_.num_workers) {
    if (progress.is_over()) {
      const WorkersMissing missing(fmt::format("after {} s, {}", progress.elapsed(), who_is_here()), seen_workers());
      refuse_all(kGivenUp, encode(missing));
      throw missing;
    }
    if (Clock::now() >= next_probe) {
      next_probe = Clock::now() + seconds(5);
      for (std::size_t w = 1; w < joined_.size(); ++w) {
        if (!joined_[w] && !is_probed_[w]) asio::co_spawn(context_, probe(static_cast<int64_t>(w)), rethrow);
      }
    }
    progress.tell([&] { return fmt::format("worker 0: {}", who_is_here()); });
    co_await changed_.wait(std::min(progress.next(), next_probe));
  }
  members_.session = fresh_session();
  members_.all.push_back(mine_.member);
  for (const auto& joined : joined_) {
    if (joined) members_.all.push_back(joined->member);
  }
  const std::string text = encode(members_);
  set_zone(members_.all, zone_);
  for (const auto& joined : joined_) {
    if (!joined) continue;
    const int64_t parent = relays() ? parent_in_tree(joined->member.worker) : 0;
    if (parent != 0) {
      joined->connection->send({.kind = Kind::kAllHere, .about = parent, .text = members_.session});
      continue;
    }
    joined->connection->send({.kind = Kind::kMembers, .text = text});
    joined->connection->close_after(kLongestConnect);
    // One that is gone by now is found by whoever waits for it to be ready.
    try {
      co_await joined->connection->flush();
      joined->connection->cancel_close();
    } catch (const ConnectionError&) {
      continue;
    }
  }
  changed_.notify();
}

/// Notes what can be seen of a worker that has not come, where its address is known.
asio::awaitable<void> NetworkRendezvous::probe(int64_t worker) {
  const auto w = static_cast<std::size_t>(worker);
  if (w >= job_.expected.size() || job_.expected[w].empty()) co_return;
  is_probed_[w] = true;
  if (seen_[w].empty()) seen_[w] = job_.expected[w];
  const std::string what = co_await what_is_at(job_.expected[w]);
  if (!what.empty()) seen_[w] = what;
  is_probed_[w] = false;
}

/// "node5:2222 (10.0.3.9), Connection refused"; empty where so many names are being looked up that this one comes
/// later.
asio::awaitable<std::string> NetworkRendezvous::what_is_at(std::string address) {
  constexpr int kMostLookUps = 8;  // each has a thread
  const auto [host, port] = parse_address({"a worker's address", address});
  std::string number = host;
  if (!is_ip_number(host)) {
    if (look_ups_ >= kMostLookUps) co_return "";
    ++look_ups_;
    const LookUp look_up(host, job_.resolver);
    // The system answers at some time; until then its thread counts, though all may have come.
    while (!look_up.is_done()) co_await changed_.wait(Clock::now() + milliseconds(20));
    --look_ups_;
    const HostNumbers found = look_up.found();
    if (found.numbers.empty()) co_return fmt::format("{}, {}", address, found.problem);
    number = found.numbers.front();
    address += fmt::format(" ({})", number);
  }
  try {
    const auto connection = co_await Connection::to(number, port, tls_, seconds(2));
    connection->close_after(seconds(2));
    connection->send({.kind = Kind::kProbe});
    const Frame answer = co_await connection->read();
    connection->close();
    co_return fmt::format("{}, {} is there", address, answer.text);
  } catch (const ConnectionError& error) {
    co_return fmt::format("{}, {}", address, error.what());
  }
}

std::optional<Frame> NetworkRendezvous::refusal_of(const Joiner& joiner, const Connection& connection) const {
  const Member& member = joiner.member;
  const auto refusal = [](uint64_t number, std::string text) {
    return Frame{.kind = Kind::kRefused, .number = number, .text = std::move(text)};
  };
  std::string objection = objection_to(joiner, mine_);
  if (!objection.empty()) return refusal(kDiffers, std::move(objection));
  if (is_loopback(member.address) && !is_loopback(connection.remote_address())) {
    return refusal(kDiffers,
                   fmt::format("{} listens at {}, which no other host can reach", member.name(), member.address));
  }
  const auto w = static_cast<std::size_t>(member.worker);
  const Member* same = w == 0 ? &mine_.member : joined_[w] ? &joined_[w]->member : nullptr;
  if (!same) return std::nullopt;
  if (w > 0 && !members_.all.empty()) {
    return refusal(kInRun, fmt::format("{} is in a run of this job, in which process {} on host {} is worker {}",
                                       mine_.member.name(), same->process, same->host, w));
  }
  return refusal(kTaken, fmt::format("process {} on host {} and process {} on host {} both want to be worker {}",
                                     same->process, same->host, member.process, member.host, w));
}

asio::awaitable<void> NetworkRendezvous::serve_joiner(std::shared_ptr<Connection> connection, Frame frame) {
  const std::optional<Joiner> joiner = decode_joiner(frame.text);
  if (!joiner) {
    listener_.refuse(*connection);
    co_return;
  }
  if (const std::optional<Frame> refusal = refusal_of(*joiner, *connection)) {
    // One that waits for the next run comes again and again.
    if (refusal->number != kInRun) {
      log(LogLevel::kWarning, fmt::format("worker 0: {}; that process is refused", refusal->text));
    }
    connection->send(*refusal);
    connection->close_after(seconds(1));
    co_return;
  }
  std::optional<Joined>& joined = joined_[static_cast<std::size_t>(joiner->member.worker)];
  joined = Joined{.member = joiner->member, .connection = connection};
  changed_.notify();
  try {
    const Frame answer = co_await connection->read();
    if (answer.kind == Kind::kReady) {
      joined->is_ready = true;
    } else {
      failure_ = answer.kind == Kind::kFailed ? answer.text : joiner->member.name() + " sent an invalid message";
    }
  } catch (const ConnectionError& error) {
    if (members_.all.empty()) {
      joined.reset();  // another process may come in its place
    } else {
      failure_ = fmt::format("the connection to {} was lost while the workers were being connected: {}",
                             joiner->member.name(), error.what());
    }
  }
  changed_.notify();
}

asio::awaitable<void> NetworkRendezvous::wait_until_ready() {
  // The others know first with whom they are not connected, and tell it.
  const Clock::time_point end = Clock::now() + job_.longest_connect_all + kGrace;
  const auto missing = [&] {
    std::vector<std::string> names;
    for (std::size_t w = 1; w < joined_.size(); ++w) {
      if (!joined_[w]->is_ready || !data_[w]) names.push_back(fmt::format("{}", w));
    }
    return names;
  };
  while (failure_.empty() && !missing().empty()) {
    if (Clock::now() >= end) {
      failure_ = fmt::format("{} could not be connected with all others in {} s", workers_text(missing()),
                             std::chrono::duration<double>(job_.longest_connect_all + kGrace).count());
      break;
    }
    co_await changed_.wait(end);
  }
  if (!failure_.empty()) {
    refuse_all(kUnreachable, failure_);
    throw_refused(kUnreachable, failure_);
  }
  may_go_ = true;
  for (std::size_t w = 1; w < joined_.size(); ++w) {
    control_[w] = joined_[w]->connection;
    control_[w]->send({.kind = Kind::kGo});
  }
}

}  // namespace lockstep::internal::comm
