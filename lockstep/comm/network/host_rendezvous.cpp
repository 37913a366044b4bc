#include "lockstep/comm/network/host_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "lockstep/comm/shared_memory/local_socket.h"

namespace lockstep::internal {

namespace {

using Kind = RendezvousMessage::Kind;

constexpr std::string_view kShared = "shared";

std::string place_of(int64_t worker, const std::string& key) {
  return rendezvous_name(fmt::format("memory of worker {}", worker), key);
}

Proof proof_of_pair(int64_t from, int64_t to, const std::string& key) {
  return hmac(key, fmt::format("lockstep memory, worker {} to worker {}", from, to));
}

/// The part of `text` that stands for worker `index`: texts of all workers, by worker, one in each line.
std::string_view line_of(std::string_view text, int64_t index) {
  for (; index > 0; --index) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool is_mixed(const std::vector<Member>& members) {
  std::set<std::string> hosts;
  for (const Member& member : members) hosts.insert(member.host_id);
  return hosts.size() > 1 && hosts.size() < members.size();
}

HostRendezvous::HostRendezvous(const std::vector<Member>& members, int64_t self, const std::string& key)
    : members_(members), self_(self), key_(key) {
  for (const Member& member : members) {
    const bool is_here = member.host_id == members[static_cast<std::size_t>(self)].host_id;
    if (is_here && member.worker != self) others_.try_emplace(member.worker);
  }
  ring_size_ = ring_size_of(static_cast<int64_t>(others_.size()) + 1);
  if (others_.empty() || others_.rbegin()->first < self) return;
  std::string problem;
  try {
    listener_ = listen_at(place_of(self, key));
    problem = listener_.is_open() ? "" : "another process has the place of this worker";
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (problem.empty()) return;
  for (auto& [worker, other] : others_) {
    if (worker > self) other.problem = problem;
  }
}

template <class Part>
void HostRendezvous::attempt(Other& other, const Part& part) {
  try {
    part();
  } catch (const std::exception& error) {
    other.problem = error.what();
    other.connection.close();
  }
}

void HostRendezvous::go_to_others() {
  for (auto& [worker, other] : others_) {
    if (worker > self_) return;
    attempt(other, [&, worker = worker, &other = other] {
      other.connection = connect_to(place_of(worker, key_));
      if (!other.connection.is_open()) throw std::runtime_error("it does not wait at its local socket");
      if (!credentials_of(other.connection).is_same_user) throw std::runtime_error("it belongs to another user");
      const RendezvousMessage join{.kind = Kind::kJoin, .proof = proof_of_pair(self_, worker, key_), .worker = self_};
      if (!send(other.connection, join)) throw std::runtime_error("it has gone from its local socket");
    });
  }
}

void HostRendezvous::give_memory() {
  if (!listener_.is_open()) return;
  // Whoever floods the place is heard so many times at most.
  const std::size_t most = others_.size() + 256;
  for (std::size_t i = 0; i < most; ++i) {
    try {
      FileDescriptor connection = accept_at(listener_);
      if (!connection.is_open()) break;
      welcome(std::move(connection));
    } catch (const std::exception& error) {
      for (auto& [worker, other] : others_) {
        if (worker > self_ && !other.channel) other.problem = error.what();
      }
      break;
    }
  }
  listener_.close();
}

/// Gives memory to a process that has come, if it is one of the others and has said so already.
void HostRendezvous::welcome(FileDescriptor connection) {
  if (!credentials_of(connection).is_same_user) return;
  Received received;
  try {
    received = receive(connection);
  } catch (const std::exception&) {
    return;  // a stranger's message: those of this run bring no file
  }
  if (!received.message || received.message->kind != Kind::kJoin) return;
  const int64_t worker = received.message->worker;
  const auto found = others_.find(worker);
  if (found == others_.end() || worker < self_ || found->second.channel) return;
  if (!equal(received.message->proof, proof_of_pair(worker, self_, key_))) return;
  Other& other = found->second;
  attempt(other, [&] {
    PairMemory memory = PairMemory::create(ring_size_);
    const RendezvousMessage answer{.kind = Kind::kWelcome, .proof = proof_of_pair(self_, worker, key_)};
    if (!send(connection, answer, memory.file())) throw std::runtime_error("it has gone");
    memory.close_file();
    other.channel = std::make_unique<MemoryChannel>(std::move(memory), 0, std::move(connection));
  });
}

void HostRendezvous::take_memory() {
  for (auto& [worker, other] : others_) {
    if (worker > self_) return;
    if (!other.connection.is_open()) continue;
    attempt(other, [&, worker = worker, &other = other] {
      const Received received = receive(other.connection);
      const auto& message = received.message;
      if (!message || message->kind != Kind::kWelcome || !received.file.is_open() ||
          !equal(message->proof, proof_of_pair(worker, self_, key_))) {
        throw std::runtime_error("it gave no memory");
      }
      PairMemory memory = PairMemory::map(received.file.get(), ring_size_);
      other.channel = std::make_unique<MemoryChannel>(std::move(memory), 1, std::move(other.connection));
    });
  }
}

std::string HostRendezvous::outcome() const {
  std::vector<std::string> lines;
  for (const Member& member : members_) {
    const auto found = others_.find(member.worker);
    std::string line;
    if (found != others_.end()) line = found->second.channel ? std::string(kShared) : found->second.problem;
    lines.push_back(line.substr(0, std::min(line.find('\n'), kLongestText)));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string HostRendezvous::problem_of(int64_t self, int64_t other, const std::vector<std::string>& outcomes) {
  // The one that gives knows more of what went wrong.
  const auto [gives, takes] = std::minmax(self, other);
  for (const auto& [from, to] : {std::pair(gives, takes), std::pair(takes, gives)}) {
    const std::string_view line = line_of(outcomes[static_cast<std::size_t>(from)], to);
    if (line != kShared) return fmt::format("worker {} says of worker {}: {}", from, to, line);
  }
  return {};
}

std::unique_ptr<MemoryChannel> HostRendezvous::channel(int64_t other, const std::vector<std::string>& outcomes) {
  const auto found = others_.find(other);
  if (found == others_.end() || !problem_of(self_, other, outcomes).empty()) return nullptr;
  return std::move(found->second.channel);
}

std::string HostRendezvous::missing(const std::vector<std::string>& outcomes) const {
  std::vector<int64_t> workers;
  std::string first;
  for (const auto& [worker, other] : others_) {
    std::string problem = problem_of(self_, worker, outcomes);
    if (problem.empty()) continue;
    if (workers.empty()) first = std::move(problem);
    workers.push_back(worker);
  }
  if (workers.empty()) return {};
  return fmt::format("worker {} shares no memory with worker{} {} of its host, and uses the network in its place: {}",
                     self_, workers.size() == 1 ? "" : "s", fmt::join(workers, ", "), first);
}

}  // namespace lockstep::internal
