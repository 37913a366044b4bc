#include "lockstep/comm/shared_memory/monitor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/comm/failure/stopped_process.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using Noticed = PeerError::Noticed;

std::string name_of(const PeerConnection& peer) {
  return fmt::format("worker {} (process {})", peer.worker, peer.process);
}

}  // namespace

WorkerMonitor::WorkerMonitor(const Segment& segment, int64_t worker, std::vector<PeerConnection> peers,
                             std::chrono::milliseconds lost)
    : segment_(segment),
      worker_(worker),
      lost_(lost),
      tick_(heartbeat_interval(lost)),
      phases_(segment.workers()),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_.is_open()) {
    throw ClusterError("LS-CLUSTER-SOCKET",
                       fmt::format("worker {} could not start its monitor (eventfd): {}", worker, std::strerror(errno)),
                       "look at this host's limits of open files");
  }
  for (PeerConnection& peer : peers) watched_.push_back({.peer = std::move(peer)});
  try {
    thread_ = start_service_thread(worker_, "monitor", [this] { watch(); });
  } catch (const ClusterError&) {
    segment_.end(worker_, "a worker could not start its monitor");
    throw;
  }
}

WorkerMonitor::~WorkerMonitor() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
  // A process that this one has forked may still hold the connections: they end here all the same.
  for (const Watched& other : watched_) shutdown(other.peer.connection.get(), SHUT_RDWR);
}

const SeenPhases& WorkerMonitor::phases() {
  for (int64_t w = 0; w < segment_.workers(); ++w) phases_.see(w, segment_.worker(w).phase.load());
  return phases_;
}

std::string WorkerMonitor::failure_of(int64_t failed, Noticed how, const std::string& text) {
  RunFailure failure{.text = text, .worker = failed, .noticed = how};
  if (failed < 0) return encode(failure);
  const SeenPhases& seen = phases();
  failure.phase = seen.phase(failed);
  failure.text += fmt::format("; worker {} was {}", failed, seen.describe(failed));
  failure.host = host_name();
  failure.process = segment_.worker(failed).process.load();
  return encode(failure);
}

void WorkerMonitor::end_by(const PeerConnection& gone) {
  const std::string who = name_of(gone);
  switch (segment_.worker(gone.worker).presence.load()) {
    case Presence::kLeft:
      return segment_.end(worker_, failure_of(gone.worker, Noticed::kLeft, fmt::format("{} left the run", who)));
    case Presence::kExited:
      return segment_.end(worker_, failure_of(gone.worker, Noticed::kExited,
                                              fmt::format("{} ended its program in the middle of the run", who)));
    case Presence::kHere: break;
  }
  segment_.end(worker_, failure_of(gone.worker, Noticed::kGone,
                                   fmt::format("{} is gone: it was killed or crashed{}", who, oom_watch_.text())));
}

void WorkerMonitor::watch() try {
  std::vector<pollfd> files{{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const Watched& one : watched_) {
    files.push_back({.fd = one.peer.connection.get(), .events = POLLIN, .revents = 0});
  }
  Clock::time_point next = Clock::now();
  while (true) {
    if (Clock::now() >= next) {
      segment_.worker(worker_).heartbeats.fetch_add(1);
      phases();
      check_heartbeats();
      if (!has_told_ && segment_.has_ended()) {
        has_told_ = true;
        tell_at_work(worker_, decode_phase(segment_.worker(worker_).phase.load()), segment_.ended());
      }
      next = Clock::now() + tick_;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    if (poll(files.data(), files.size(), static_cast<int>(std::max<int64_t>(left, 0))) <= 0) continue;
    if (files.front().revents != 0) return;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (files[i + 1].revents == 0) continue;
      // Nothing is sent once the memory is shared: whatever comes is the end.
      files[i + 1].fd = -1;
      watched_[i].silent_ticks = -1;
      end_by(watched_[i].peer);
    }
  }
} catch (const std::exception&) {  // no memory for a text
  segment_.end(worker_, {});
}

void WorkerMonitor::check_heartbeats() {
  for (Watched& one : watched_) {
    if (one.silent_ticks < 0) continue;  // its connection broke
    if (segment_.worker(one.peer.worker).presence.load() != Presence::kHere) {
      // Its connection may still be held open, by a process that it has forked.
      one.silent_ticks = -1;
      end_by(one.peer);
      continue;
    }
    const uint64_t heartbeats = segment_.worker(one.peer.worker).heartbeats.load();
    one.silent_ticks = heartbeats == one.heartbeats ? one.silent_ticks + 1 : 0;
    one.heartbeats = heartbeats;
    if (one.silent_ticks < lost_ / tick_) continue;
    one.silent_ticks = -1;
    const std::string stop = stop_of(one.peer.process);
    segment_.end(worker_,
                 failure_of(one.peer.worker, Noticed::kSilent,
                            fmt::format("{} is frozen: it has sent no heartbeat for {:.1f} s{}{}", name_of(one.peer),
                                        std::chrono::duration<double>(lost_).count(), stop.empty() ? "" : "; ", stop)));
  }
}

}  // namespace lockstep::internal::comm
