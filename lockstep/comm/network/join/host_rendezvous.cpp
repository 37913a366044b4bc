#include "lockstep/comm/network/join/host_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "lockstep/comm/shared_memory/extents.h"
#include "lockstep/comm/shared_memory/local_socket.h"

namespace lockstep::internal::inline comm {

namespace {

using Kind = RendezvousMessage::Kind;

constexpr std::string_view kShared = "shared";

std::string place_of(int64_t worker, const std::string& key) {
  return rendezvous_name(fmt::format("memory of worker {}", worker), key);
}

Proof proof_of_pair(int64_t from, int64_t to, const std::string& key) {
  return hmac(key, fmt::format("lockstep memory, worker {} to worker {}", from, to));
}

/// Of the message that brings the host memory.
Proof proof_of_host_memory(int64_t from, int64_t to, const std::string& key) {
  return hmac(key, fmt::format("lockstep host memory, worker {} to worker {}", from, to));
}

/// SharedMemory has no empty files: the first page of the host memory is unused.
constexpr std::size_t kBegin = 4096;

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
  if (is_first()) make_host_memory();
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
    if (is_first()) give_host_memory(connection, worker);
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
      if (worker == others_.begin()->first) take_host_memory(other.connection, worker);
      other.channel = std::make_unique<MemoryChannel>(std::move(memory), 1, std::move(other.connection));
    });
  }
}

std::vector<int64_t> HostRendezvous::workers_of_host() const {
  std::vector<int64_t> workers{self_};
  for (const auto& [worker, other] : others_) workers.push_back(worker);
  std::sort(workers.begin(), workers.end());
  return workers;
}

void HostRendezvous::make_host_memory() {
  try {
    beginning_.emplace(SharedMemory::create(kBegin));
    host_memory_ = std::make_unique<Extents>(beginning_->file(), kBegin, workers_of_host());
  } catch (const std::exception& error) {
    no_host_memory_ = error.what();
  }
}

void HostRendezvous::give_host_memory(const FileDescriptor& connection, int64_t worker) const {
  if (!host_memory_) return;
  send(connection, {.kind = Kind::kWelcome, .proof = proof_of_host_memory(self_, worker, key_)}, beginning_->file());
}

void HostRendezvous::take_host_memory(const FileDescriptor& connection, int64_t worker) {
  try {
    const Received received = receive(connection);
    const auto& message = received.message;
    if (!message || message->kind != Kind::kWelcome || !received.file.is_open() ||
        !equal(message->proof, proof_of_host_memory(worker, self_, key_))) {
      return;
    }
    const SharedMemory beginning = SharedMemory::map(received.file.get(), kBegin);
    host_memory_ = std::make_unique<Extents>(beginning.file(), kBegin, workers_of_host());
  } catch (const std::exception& error) {
    no_host_memory_ = error.what();
  }
}

std::string HostRendezvous::outcome() const {
  const auto one_line = [](const std::string& text) { return text.substr(0, std::min(text.find('\n'), kLongestText)); };
  std::vector<std::string> lines;
  for (const Member& member : members_) {
    const auto found = others_.find(member.worker);
    std::string line;
    if (found != others_.end()) line = found->second.channel ? std::string(kShared) : found->second.problem;
    lines.push_back(one_line(line));
  }
  lines.push_back(host_memory_ ? std::string(kShared) : one_line(no_host_memory_));
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

std::string HostRendezvous::missing_host_memory(const std::vector<std::string>& outcomes) const {
  for (std::size_t w = 0; w < outcomes.size(); ++w) {
    const std::string_view line = line_of(outcomes[w], static_cast<int64_t>(outcomes.size()));
    if (line != kShared) return fmt::format("worker {} has no memory in common with its host: {}", w, line);
  }
  return {};
}

std::unique_ptr<HostMemory> HostRendezvous::host_memory(const std::vector<std::string>& outcomes) {
  return missing_host_memory(outcomes).empty() ? std::move(host_memory_) : nullptr;
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

SharedOnHost share_on_host(const std::vector<Member>& members, int64_t self, const std::string& key,
                           FunctionRef<std::vector<std::string>(const std::string&)> agree) {
  HostRendezvous rendezvous(members, self, key);
  // Each agreement waits until all have made the step before it.
  agree("waits at its place");
  rendezvous.go_to_others();
  agree("has gone to the others");
  rendezvous.give_memory();
  agree("has given memory");
  rendezvous.take_memory();
  const std::vector<std::string> outcomes = agree(rendezvous.outcome());
  SharedOnHost shared{.description = "; workers of one host exchange bytes through memory that only they map"};
  for (const Member& member : members) shared.channels.push_back(rendezvous.channel(member.worker, outcomes));
  shared.host_memory = rendezvous.host_memory(outcomes);
  std::string missing = rendezvous.missing(outcomes);
  if (!missing.empty()) {
    shared.description += ", but for some that could not";
    shared.warnings.push_back(std::move(missing));
  }
  if (shared.host_memory) return shared;
  shared.description += "; no host has one copy of its values";
  if (self == 0) {
    shared.warnings.push_back(
        fmt::format("no host has one copy of weights and slots for its workers, because {}; look at the limits of "
                    "memory and of open "
                    "files there",
                    rendezvous.missing_host_memory(outcomes)));
  }
  return shared;
}

}  // namespace lockstep::internal::comm
