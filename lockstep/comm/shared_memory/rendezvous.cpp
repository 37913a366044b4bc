#include "lockstep/comm/shared_memory/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "lockstep/comm/differences.h"
#include "lockstep/comm/join/missing_workers.h"
#include "lockstep/comm/progress.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

using Kind = RendezvousMessage::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kDiffersRemedy[] =
    "give all workers the same program, number of workers, processor type and settings of the matrix library";
constexpr char kTakenRemedy[] = "end the other process, or give each worker an index of its own";

/// Worker 0, while the others come.
class RendezvousServer {
 public:
  RendezvousServer(const LocalJob& job, FileDescriptor listener) : job_(job), listener_(std::move(listener)) {}

  RendezvousResult wait(milliseconds longest) try {
    Progress progress(longest);
    while (num_joined() + 1 < job_.num_workers) {
      if (progress.is_over()) give_up(progress.elapsed());
      progress.tell([&] { return fmt::format("worker 0: {}", who_is_here()); });
      poll_until(std::min(progress.next(), first_deadline()));
      for (Candidate& candidate : candidates_) read_from(candidate);
      // Before newcomers are heard: one that comes in the place of a worker that has died finds its index free.
      std::erase_if(candidates_, [](const Candidate& candidate) { return candidate.is_gone || is_late(candidate); });
      accept_candidates();
    }
    RendezvousResult team{Segment::create(job_.num_workers), {}};
    for (Candidate& candidate : candidates_) {
      if (!candidate.is_here()) continue;
      // A worker that is gone by now is found by whoever watches the connection.
      send(candidate.connection, {.kind = Kind::kWelcome}, team.segment.file());
      team.peers.push_back({*candidate.worker, candidate.process, std::move(candidate.connection)});
    }
    return team;
  } catch (const WorkersMissing& error) {
    refuse_all(encode(error));
    throw;
  } catch (const ClusterError& error) {
    const std::string text = error.what();
    refuse_all(text.substr(0, text.find('\n')));
    throw;
  }

 private:
  struct Candidate {
    FileDescriptor connection;
    int64_t process = 0;
    Nonce of_worker = {};
    Nonce of_chief = fresh_nonce();
    std::optional<int64_t> worker = {};  // once it has joined
    bool is_challenged = false;
    bool is_gone = false;
    bool is_here() const { return worker.has_value() && !is_gone; }
    Clock::time_point deadline = Clock::now() + seconds(5);  // until it has joined
  };

  static bool is_late(const Candidate& candidate) { return !candidate.worker && Clock::now() >= candidate.deadline; }

  int64_t num_joined() const {
    return std::count_if(candidates_.begin(), candidates_.end(),
                         [](const Candidate& candidate) { return candidate.is_here(); });
  }
  /// The process that has joined as this worker and is still there.
  const Candidate* candidate_for(int64_t worker) const {
    const auto found = std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.is_here() && candidate.worker == worker;
    });
    return found == candidates_.end() ? nullptr : &*found;
  }
  std::string who_is_here() const {
    std::vector<int64_t> missing;
    for (int64_t w = 1; w < job_.num_workers; ++w) {
      if (!candidate_for(w)) missing.push_back(w);
    }
    return fmt::format("{} of {} workers are here; missing: worker{} {}", num_joined() + 1, job_.num_workers,
                       missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }
  [[noreturn]] void give_up(int64_t elapsed) const {
    std::vector<SeenWorker> seen(static_cast<std::size_t>(job_.num_workers), {.state = SeenWorker::State::kHere});
    for (int64_t w = 1; w < job_.num_workers; ++w) {
      if (!candidate_for(w)) seen[static_cast<std::size_t>(w)].state = SeenWorker::State::kMissing;
    }
    throw WorkersMissing(fmt::format("after {} s, {}", elapsed, who_is_here()), std::move(seen));
  }
  /// The others would wait for worker 0 until their own end of time.
  void refuse_all(const std::string& text) const {
    for (const Candidate& candidate : candidates_) {
      if (candidate.worker) send(candidate.connection, {.kind = Kind::kRefused, .worker = -1, .text = text});
    }
  }

  Clock::time_point first_deadline() const {
    auto first = Clock::time_point::max();
    for (const Candidate& candidate : candidates_) {
      if (!candidate.worker) first = std::min(first, candidate.deadline);
    }
    return first;
  }
  void poll_until(Clock::time_point until) const {
    std::vector<pollfd> files{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Candidate& candidate : candidates_)
      files.push_back({.fd = candidate.connection.get(), .events = POLLIN, .revents = 0});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    poll(files.data(), files.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
  }

  void accept_candidates() {
    // Whoever floods the place keeps at most so many connections; those that have not joined go first.
    const std::size_t most = static_cast<std::size_t>(job_.num_workers) + 16;
    while (true) {
      Candidate candidate{.connection = accept_at(listener_)};
      if (!candidate.connection.is_open()) return;
      const PeerCredentials peer = credentials_of(candidate.connection);
      if (!peer.is_same_user) continue;
      if (candidates_.size() >= most) {
        candidates_.erase(
            std::find_if(candidates_.begin(), candidates_.end(), [](const Candidate& other) { return !other.worker; }));
      }
      candidate.process = peer.process;
      candidates_.push_back(std::move(candidate));
    }
  }

  void read_from(Candidate& candidate) {
    const Received received = receive(candidate.connection);
    candidate.is_gone = received.is_over;
    if (!received.message) return;
    const RendezvousMessage& message = *received.message;
    if (message.kind == Kind::kHello && !candidate.is_challenged) {
      candidate.is_challenged = true;
      candidate.of_worker = message.nonce;
      const Proof proof = proof_of(job_.secret, "worker 0", candidate.of_worker, candidate.of_chief);
      candidate.is_gone =
          !send(candidate.connection, {.kind = Kind::kChallenge, .nonce = candidate.of_chief, .proof = proof});
    } else if (message.kind == Kind::kJoin && candidate.is_challenged && !candidate.worker &&
               equal(message.proof, proof_of(job_.secret, "worker", candidate.of_worker, candidate.of_chief))) {
      join(candidate, message);
    } else {
      candidate.is_gone = true;
    }
  }

  void join(Candidate& candidate, const RendezvousMessage& message) {
    // A process that has died since it joined leaves its index to the next one.
    for (Candidate& other : candidates_) {
      if (other.is_here() && other.worker == message.worker) read_from(other);
    }
    Kind refusal = Kind::kRefused;
    std::string objection;
    if (message.num_workers != job_.num_workers) {
      objection = fmt::format(
          "worker {} (process {}) was told that there are {} workers, and worker 0 (process {}) was told {}",
          message.worker, candidate.process, message.num_workers, getpid(), job_.num_workers);
    } else if (message.worker < 1 || message.worker >= job_.num_workers) {
      objection =
          fmt::format("process {} wants to be worker {} of {}", candidate.process, message.worker, job_.num_workers);
    } else if (message.text != job_.must_match) {
      const auto [theirs, ours] = first_difference(message.text, job_.must_match);
      objection = fmt::format("worker {} (process {}) has '{}', and worker 0 (process {}) has '{}'", message.worker,
                              candidate.process, theirs, getpid(), ours);
    } else if (const Candidate* const other = candidate_for(message.worker)) {
      refusal = Kind::kTaken;
      objection = fmt::format("processes {} and {} both want to be worker {}", other->process, candidate.process,
                              message.worker);
    }
    if (objection.empty()) {
      candidate.worker = message.worker;
      return;
    }
    log(LogLevel::kWarning, fmt::format("worker 0: {}; that process is refused", objection));
    send(candidate.connection, {.kind = refusal, .worker = message.worker, .text = objection});
    candidate.is_gone = true;
  }

  const LocalJob& job_;
  const FileDescriptor listener_;
  std::vector<Candidate> candidates_;
};

/// One attempt of another worker to join; nothing where worker 0 is not there or has gone.
std::optional<RendezvousResult> join_once(const LocalJob& job, const std::string& place, Progress& progress) {
  // Worker 0, which knows who is missing, says so at its own end of time.
  constexpr seconds kGrace{2};
  FileDescriptor connection = connect_to(place);
  if (!connection.is_open()) return {};
  const PeerCredentials peer = credentials_of(connection);
  if (!peer.is_same_user) {
    throw ClusterError("LS-CLUSTER-SOCKET",
                       fmt::format("process {}, of another user, waits where worker 0 should", peer.process),
                       "give the job a secret or another id");
  }
  const Nonce mine = fresh_nonce();
  if (!send(connection, {.kind = Kind::kHello, .nonce = mine})) return {};
  bool is_proved = false;  // that worker 0 knows the secret: before, nothing that it says is believed
  while (!progress.is_over(kGrace)) {
    wait_for_input(connection, progress.is_over() ? Clock::now() + kGrace : progress.next());
    progress.tell([&] {
      return fmt::format("worker {} has found worker 0 (process {}) and waits for the others", job.worker_index,
                         peer.process);
    });
    Received received = receive(connection);
    if (received.is_over) return {};
    if (!received.message) continue;
    const RendezvousMessage& message = *received.message;
    switch (message.kind) {
      case Kind::kChallenge:
        if (!equal(message.proof, proof_of(job.secret, "worker 0", mine, message.nonce))) {
          throw ClusterError(
              "LS-CLUSTER-DIFFERS",
              fmt::format("process {}, which waits as worker 0, does not know this job's secret", peer.process),
              kDiffersRemedy);
        }
        is_proved = true;
        if (!send(connection, {.kind = Kind::kJoin,
                               .proof = proof_of(job.secret, "worker", mine, message.nonce),
                               .worker = job.worker_index,
                               .num_workers = job.num_workers,
                               .text = job.must_match}))
          return {};
        break;
      case Kind::kWelcome: {
        if (!is_proved) return {};
        RendezvousResult team{Segment::map(received.file.get(), job.num_workers), {}};
        team.peers.push_back({0, peer.process, std::move(connection)});
        return team;
      }
      case Kind::kRefused:
        if (!is_proved) return {};
        // Worker 0 gave up where it names no worker.
        if (message.worker < 0) throw decode_missing(message.text, job.num_workers);
        throw ClusterError("LS-CLUSTER-DIFFERS", message.text, kDiffersRemedy);
      case Kind::kTaken:
        if (!is_proved) return {};
        throw ClusterError("LS-CLUSTER-TAKEN", message.text, kTakenRemedy);
      default: return {};
    }
  }
  throw chief_missing(
      fmt::format("worker {} has found worker 0 (process {}), which has not brought all workers together "
                  "in {} s",
                  job.worker_index, peer.process, progress.elapsed()),
      job.worker_index, job.num_workers, fmt::format("process {} waits there", peer.process));
}

}  // namespace

RendezvousResult rendezvous(const LocalJob& job, milliseconds join) {
  constexpr int64_t kMostWorkers = 512;  // their memory grows with the square of their number
  if (job.num_workers > kMostWorkers) {
    throw ClusterError("LS-CLUSTER-MEMORY", fmt::format("{} workers on one host", job.num_workers),
                       fmt::format("start at most {} workers on one host", kMostWorkers));
  }
  const std::string place = rendezvous_name(job.name, job.secret);
  if (job.worker_index == 0) {
    FileDescriptor listener = listen_at(place);
    if (listener.is_open()) return RendezvousServer(job, std::move(listener)).wait(join);
    const FileDescriptor connection = connect_to(place);
    const std::string other =
        !connection.is_open() ? "another process" : fmt::format("process {}", credentials_of(connection).process);
    throw ClusterError(
        "LS-CLUSTER-TAKEN",
        fmt::format("{} is worker 0 of this job already, and process {} wants to be it too", other, getpid()),
        kTakenRemedy);
  }
  Progress progress(join);
  while (!progress.is_over()) {
    if (std::optional<RendezvousResult> team = join_once(job, place, progress)) return std::move(*team);
    progress.tell([&] { return fmt::format("worker {} waits for worker 0, which has not come", job.worker_index); });
    constexpr milliseconds kPause{20};
    wait_for_input(FileDescriptor(), std::min(Clock::now() + kPause, progress.next()));
  }
  throw chief_missing(fmt::format("worker {} of {} has waited {} s for worker 0, which has not come to this host",
                                  job.worker_index, job.num_workers, progress.elapsed()),
                      job.worker_index, job.num_workers);
}

}  // namespace lockstep::internal::comm
