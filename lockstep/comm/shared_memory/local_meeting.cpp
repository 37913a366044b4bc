#include "lockstep/comm/shared_memory/local_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal {

namespace {

using Kind = LocalMessage::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kJoinRemedy[] =
    "start the missing workers, and give all workers the same job id, chief address and secret";
constexpr char kDiffersRemedy[] =
    "give all workers the same program, number of workers, processor type and settings of the matrix library, and an "
    "index each";

/// Says every ten seconds that the worker still waits.
class Progress {
 public:
  explicit Progress(milliseconds longest) : begin_(Clock::now()), next_(begin_ + kInterval), end_(begin_ + longest) {}

  template <class Text>
  void tell(const Text& text) {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + kInterval;
    log(LogLevel::kWarning, fmt::format("after {} s, {}", elapsed(), text()));
  }
  int64_t elapsed() const { return std::chrono::duration_cast<seconds>(Clock::now() - begin_).count(); }
  bool is_over(milliseconds grace = {}) const { return Clock::now() >= end_ + grace; }
  /// When there is something to do, though nobody has come.
  Clock::time_point next() const { return std::min(next_, end_); }

 private:
  static constexpr seconds kInterval{10};
  const Clock::time_point begin_;
  Clock::time_point next_;
  const Clock::time_point end_;
};

/// The first line in which two texts differ, from each.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (true) {
    const std::string_view line_a = a.substr(0, a.find('\n'));
    const std::string_view line_b = b.substr(0, b.find('\n'));
    if (line_a != line_b || (line_a.size() == a.size() && line_b.size() == b.size())) {
      return {std::string(line_a), std::string(line_b)};
    }
    a.remove_prefix(std::min(a.size(), line_a.size() + 1));
    b.remove_prefix(std::min(b.size(), line_b.size() + 1));
  }
}

/// Worker 0, while the others come.
class Host {
 public:
  Host(const LocalJob& job, OwnedFile listener) : job_(job), listener_(std::move(listener)) {}

  LocalTeam wait(milliseconds longest) try {
    Progress progress(longest);
    while (num_joined() + 1 < job_.num_workers) {
      if (progress.is_over()) give_up(progress.elapsed());
      progress.tell([&] { return fmt::format("worker 0: {}", who_is_here()); });
      poll_until(std::min(progress.next(), first_deadline()));
      for (Guest& guest : guests_) hear(guest);
      // Before newcomers are heard: one that comes in the place of a worker that has died finds its index free.
      std::erase_if(guests_, [](const Guest& guest) { return guest.is_gone || is_late(guest); });
      welcome_newcomers();
    }
    LocalTeam team{Segment::create(job_.num_workers), {}};
    for (Guest& guest : guests_) {
      if (!guest.is_here()) continue;
      // A worker that is gone by now is found by whoever watches the connection.
      send(guest.connection, {.kind = Kind::kWelcome}, team.segment.file());
      team.neighbors.push_back({*guest.worker, guest.process, std::move(guest.connection)});
    }
    return team;
  } catch (const ClusterError& error) {
    // The others would wait for worker 0 until their own end of time.
    const std::string text = error.what();
    const LocalMessage refusal{.kind = Kind::kRefused, .worker = -1, .text = text.substr(0, text.find('\n'))};
    for (const Guest& guest : guests_) {
      if (guest.worker) send(guest.connection, refusal);
    }
    throw;
  }

 private:
  struct Guest {
    OwnedFile connection;
    int64_t process = 0;
    Nonce of_worker = {};
    Nonce of_chief = fresh_nonce();
    std::optional<int64_t> worker = {};  // once it has joined
    bool is_challenged = false;
    bool is_gone = false;
    bool is_here() const { return worker.has_value() && !is_gone; }
    Clock::time_point deadline = Clock::now() + seconds(5);  // until it has joined
  };

  static bool is_late(const Guest& guest) { return !guest.worker && Clock::now() >= guest.deadline; }

  int64_t num_joined() const {
    return std::count_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.is_here(); });
  }
  /// The process that has joined as this worker and is still there.
  const Guest* guest_of(int64_t worker) const {
    const auto found = std::find_if(guests_.begin(), guests_.end(),
                                    [&](const Guest& guest) { return guest.is_here() && guest.worker == worker; });
    return found == guests_.end() ? nullptr : &*found;
  }
  std::string who_is_here() const {
    std::vector<int64_t> missing;
    for (int64_t w = 1; w < job_.num_workers; ++w) {
      if (!guest_of(w)) missing.push_back(w);
    }
    return fmt::format("{} of {} workers are here; missing: worker{} {}", num_joined() + 1, job_.num_workers,
                       missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }
  [[noreturn]] void give_up(int64_t elapsed) {
    throw ClusterError("LS-CLUSTER-JOIN", fmt::format("after {} s, {}", elapsed, who_is_here()), kJoinRemedy);
  }

  Clock::time_point first_deadline() const {
    auto first = Clock::time_point::max();
    for (const Guest& guest : guests_) {
      if (!guest.worker) first = std::min(first, guest.deadline);
    }
    return first;
  }
  void poll_until(Clock::time_point until) const {
    std::vector<pollfd> files{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Guest& guest : guests_) files.push_back({.fd = guest.connection.get(), .events = POLLIN, .revents = 0});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    poll(files.data(), files.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
  }

  void welcome_newcomers() {
    // Whoever floods the place keeps at most so many connections; those that have not joined go first.
    const std::size_t most = static_cast<std::size_t>(job_.num_workers) + 16;
    while (true) {
      Guest guest{.connection = accept_at(listener_)};
      if (guest.connection.get() < 0) return;
      const Peer peer = peer_of(guest.connection);
      if (!peer.is_same_user) continue;
      if (guests_.size() >= most) {
        guests_.erase(std::find_if(guests_.begin(), guests_.end(), [](const Guest& other) { return !other.worker; }));
      }
      guest.process = peer.process;
      guests_.push_back(std::move(guest));
    }
  }

  void hear(Guest& guest) {
    const Received received = receive(guest.connection);
    guest.is_gone = received.is_over;
    if (!received.message) return;
    const LocalMessage& message = *received.message;
    if (message.kind == Kind::kHello && !guest.is_challenged) {
      guest.is_challenged = true;
      guest.of_worker = message.nonce;
      const Proof proof = proof_of(job_.secret, "worker 0", guest.of_worker, guest.of_chief);
      guest.is_gone = !send(guest.connection, {.kind = Kind::kChallenge, .nonce = guest.of_chief, .proof = proof});
    } else if (message.kind == Kind::kJoin && guest.is_challenged && !guest.worker &&
               equal(message.proof, proof_of(job_.secret, "worker", guest.of_worker, guest.of_chief))) {
      join(guest, message);
    } else {
      guest.is_gone = true;
    }
  }

  void join(Guest& guest, const LocalMessage& message) {
    // A process that has died since it joined leaves its index to the next one.
    for (Guest& other : guests_) {
      if (other.is_here() && other.worker == message.worker) hear(other);
    }
    std::string objection;
    if (message.num_workers != job_.num_workers) {
      objection = fmt::format(
          "worker {} (process {}) was told that there are {} workers, and worker 0 (process {}) was told {}",
          message.worker, guest.process, message.num_workers, getpid(), job_.num_workers);
    } else if (message.worker < 1 || message.worker >= job_.num_workers) {
      objection =
          fmt::format("process {} wants to be worker {} of {}", guest.process, message.worker, job_.num_workers);
    } else if (const Guest* const other = guest_of(message.worker)) {
      objection =
          fmt::format("processes {} and {} both want to be worker {}", other->process, guest.process, message.worker);
    } else if (message.text != job_.must_match) {
      const auto [theirs, ours] = first_difference(message.text, job_.must_match);
      objection = fmt::format("worker {} (process {}) has '{}', and worker 0 (process {}) has '{}'", message.worker,
                              guest.process, theirs, getpid(), ours);
    }
    if (objection.empty()) {
      guest.worker = message.worker;
      return;
    }
    log(LogLevel::kWarning, fmt::format("worker 0: {}; that process is refused", objection));
    send(guest.connection, {.kind = Kind::kRefused, .worker = message.worker, .text = objection});
    guest.is_gone = true;
  }

  const LocalJob& job_;
  const OwnedFile listener_;
  std::vector<Guest> guests_;
};

/// One attempt of another worker to join; nothing where worker 0 is not there or has gone.
std::optional<LocalTeam> join_once(const LocalJob& job, const std::string& place, Progress& progress) {
  // Worker 0, which knows who is missing, says so at its own end of time.
  constexpr seconds kGrace{2};
  OwnedFile connection = connect_to(place);
  if (connection.get() < 0) return {};
  const Peer peer = peer_of(connection);
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
    const LocalMessage& message = *received.message;
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
        LocalTeam team{Segment::map(received.file.get(), job.num_workers), {}};
        team.neighbors.push_back({0, peer.process, std::move(connection)});
        return team;
      }
      case Kind::kRefused:
        if (!is_proved) return {};
        // Worker 0 gave up where it names no worker.
        if (message.worker < 0) throw ClusterError("LS-CLUSTER-JOIN", message.text, kJoinRemedy);
        throw ClusterError("LS-CLUSTER-DIFFERS", message.text, kDiffersRemedy);
      default: return {};
    }
  }
  throw ClusterError(
      "LS-CLUSTER-JOIN",
      fmt::format("worker {} has found worker 0 (process {}), which has not brought all workers together "
                  "in {} s",
                  job.worker_index, peer.process, progress.elapsed()),
      kJoinRemedy);
}

}  // namespace

LocalTeam meet_locally(const LocalJob& job, milliseconds join) {
  constexpr int64_t kMostWorkers = 512;  // their memory grows with the square of their number
  if (job.num_workers > kMostWorkers) {
    throw ClusterError("LS-CLUSTER-MEMORY", fmt::format("{} workers on one host", job.num_workers),
                       fmt::format("start at most {} workers on one host", kMostWorkers));
  }
  const std::string place = meeting_place(job.name, job.secret);
  if (job.worker_index == 0) {
    OwnedFile listener = listen_at(place);
    if (listener.get() >= 0) return Host(job, std::move(listener)).wait(join);
    const OwnedFile connection = connect_to(place);
    const std::string other =
        connection.get() < 0 ? "another process" : fmt::format("process {}", peer_of(connection).process);
    throw ClusterError(
        "LS-CLUSTER-DIFFERS",
        fmt::format("{} is worker 0 of this job already, and process {} wants to be it too", other, getpid()),
        kDiffersRemedy);
  }
  Progress progress(join);
  while (!progress.is_over()) {
    if (std::optional<LocalTeam> team = join_once(job, place, progress)) return std::move(*team);
    progress.tell([&] { return fmt::format("worker {} waits for worker 0, which has not come", job.worker_index); });
    constexpr milliseconds kPause{20};
    wait_for_input(OwnedFile(), std::min(Clock::now() + kPause, progress.next()));
  }
  throw ClusterError("LS-CLUSTER-JOIN",
                     fmt::format("worker {} of {} has waited {} s for worker 0, which has not come to this host",
                                 job.worker_index, job.num_workers, progress.elapsed()),
                     kJoinRemedy);
}

}  // namespace lockstep::internal
